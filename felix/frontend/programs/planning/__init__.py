"""Groups chosen by their cost: candidates, what each costs, and the cheapest cover of a model.

A *candidate* is an operator, its root, with some of the operators before it: one program that
gives the root's result. Several candidates may compute the same cheap operator, a move of elements
say. `candidates` enumerates them and picks those that together give every output at the least
cost, `graph` says what each takes, and `planner` does all of it for a module.
"""

from __future__ import annotations
