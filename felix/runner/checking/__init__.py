"""What outputs have to be, and how candidates are compared with it."""
