"""Measuring on a cluster: a process that alone talks to it, and what engines do through that."""
