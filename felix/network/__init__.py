"""Whole networks: a model in, a tuned callable out. `felix.network.optimize` is where to start.

In: a model, inputs, a budget.
Out: a callable, a report.
From: users, `cli`, `server`.
"""
