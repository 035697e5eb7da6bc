"""Tuners that are or were there, their devices, and who may measure for them."""
