"""Pieces of a benchmark in two processes that overlap: Felix tunes, the libraries are prepared."""
