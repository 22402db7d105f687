"""Profiles of kernels: tools, their reports, ceilings."""
