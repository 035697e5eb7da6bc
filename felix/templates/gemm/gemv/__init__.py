"""Products of few rows without tensor cores: each element of the matrix is read once."""
