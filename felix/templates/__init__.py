"""Kernels that Felix generates from parameters, for what TVM's rules cannot express."""
