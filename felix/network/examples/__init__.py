"""Example inputs of a network, and what its model returns on them."""
