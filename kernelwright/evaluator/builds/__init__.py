"""Products from sources: compilers, caches, the CUDA emulator, the OpenMP runtime."""
