"""What tuning found of tasks, kept for the next time: the same task, or a similar one."""
