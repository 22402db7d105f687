"""CUDA's driver, and our own kernels for it."""
