"""Running and timing on NVIDIA GPUs."""
