"""Nodes of a cluster without devices: building and running take fixed times.

The pool over them is the real one (`felix.measure.cluster.pool.ClusterPool`), with its threads,
queues and messages; a node alone is made up.
"""
