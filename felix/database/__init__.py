"""What tuning found of tasks, kept for the next time: the same task, or a similar one.

In: results of tasks.
Out: those of the same or similar tasks.
From: `network`, `cli`.
"""
