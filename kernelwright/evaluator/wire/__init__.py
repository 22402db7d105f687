"""Formats that both ends of a worker's socket share. Workers import them, so they need neither torch nor pydantic."""
