"""Matrix products on tensor cores: C = epilogue(A · B), plain or batched."""
