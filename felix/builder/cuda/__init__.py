"""From a program to a cubin and its launches."""
