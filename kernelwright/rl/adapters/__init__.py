"""Adapters for third-party trainers. Each adapter is a module that imports its trainer only when it is used.

``kernelwright.rl.adapters.trl`` and ``kernelwright.rl.adapters.verl``.
"""
