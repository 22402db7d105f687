"""The check set: what the reference answers, and how far to trust it."""
