"""Measuring on other machines: workers of a Ray cluster build, check and time candidates.

A `node.Node` is what runs on a machine of the cluster. `pool.ClusterPool` is the measurer of a
tuner: the stages of a local pool, whose builders and devices are nodes (`remote`). `messages` is
what goes between the two, `ray_cluster` who is there.
"""
