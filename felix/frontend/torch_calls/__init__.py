"""What PyTorch calls for the programs of a model: kept from import, so that it may run them.

Lowering leaves a program of loops of an operator. `annotation` writes on it which function of
PyTorch it stands for; `forms` puts those of a group together.
"""
