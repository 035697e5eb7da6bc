"""Processes that search rounds of tasks for a run, and what goes between them and it."""
