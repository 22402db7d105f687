"""Triton kernels without a GPU: the interpreter and what it is told."""
