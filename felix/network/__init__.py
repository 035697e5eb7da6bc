"""Whole networks: a model in, a tuned callable out. `felix.network.optimize` is where to start."""
