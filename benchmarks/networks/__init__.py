"""Networks with random weights, whole or small, for benchmarks and tests."""
