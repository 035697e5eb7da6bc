"""Where `felix tune` and `felix worker` measure if not here: on a cluster, on boards."""
