"""Kernels that Felix generates from parameters, for what TVM's rules cannot express.

In: a product or convolution, parameters.
Out: a CUDA kernel, its formulas and limits.
From: `space`, `builder`, `frontend`, `tuning`.
"""
