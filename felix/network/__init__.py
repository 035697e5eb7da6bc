"""Whole networks: a model in, a tuned callable out. `felix.network.optimize` is where to start.

In: a model, inputs, a budget.
Out: a callable, a report.
From: users, `cli`, `server`.

In the order of a call: import (`imported`), group (`groups`, `group_costs`), tune (`outcomes`),
choose (`contenders`, `attentions`), assemble (`assembly`, `passes`), run (`executable`,
`cuda_graph`, `optimized`). `checking`, `judge` and `differences` compare it with the model.
"""
