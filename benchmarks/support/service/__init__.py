"""The pieces of `benchmarks/service.py`."""
