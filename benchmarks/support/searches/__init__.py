"""Pieces of `search_efficiency`, as the processes of each run them."""
