"""What a program from outside has to be: its names, its indices, its operations."""
