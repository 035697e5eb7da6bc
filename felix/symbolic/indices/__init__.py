"""Indices of buffers: expressions, their inverses, and what is loaded to index with."""
