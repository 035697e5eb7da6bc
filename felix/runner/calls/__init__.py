"""Timing of Python calls, PyTorch's and numpy's and those of networks, with cold inputs."""
