"""Contenders of a group: timed side by side, the wrong ones excluded, the fastest shipped."""
