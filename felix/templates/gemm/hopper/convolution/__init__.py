"""Convolutions: products whose one operand is gathered from pixels by TMA in im2col mode."""
