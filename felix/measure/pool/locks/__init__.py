"""Locks that keep timing apart from everything else."""
