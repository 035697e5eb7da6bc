"""Measuring on boards: machines that cannot run Ray, reached by TVM's RPC tracker.

Programs are built here, for the board's target, and run there by TVM's RPC server. What outputs
have to be is computed here, once a task, by a confined process.
"""
