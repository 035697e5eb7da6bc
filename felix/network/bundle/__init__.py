"""The artifact of a network: a folder that runs without Felix."""
