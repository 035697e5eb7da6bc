"""Transposed convolutions as products: one convolution for each phase of the result."""
