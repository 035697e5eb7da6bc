"""Groups that PyTorch's own operators run."""
