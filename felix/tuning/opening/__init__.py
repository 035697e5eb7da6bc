"""How the tasks of a run begin: which sketches are opened when, and first rounds."""
