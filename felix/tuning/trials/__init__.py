"""Candidates on their way, their records, and the fastest of them measured again."""
