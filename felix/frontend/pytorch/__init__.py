"""PyTorch modules by `torch.export` as Relax functions."""
