"""Adapters for trainers of others. Each is a module of its own, which imports its trainer only when it is used.

``kernelwright.rl.adapters.trl`` and ``kernelwright.rl.adapters.verl``.
"""
