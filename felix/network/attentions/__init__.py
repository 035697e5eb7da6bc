"""Attentions as a whole: `finding` them among a network's programs, `rewiring` a network so that
PyTorch's operator takes their place, and who is faster (`whole`)."""
