"""The backend of `torch.compile`: start reading at `entry`, then `graphs`."""
