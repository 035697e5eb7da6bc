"""Passes over an assembled network: what leaves a call because it need be done only once."""
