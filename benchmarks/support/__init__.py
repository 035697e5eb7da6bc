"""Parts of the benchmarks that are not run by themselves."""
