"""The check set: the reference's outputs, and how far to trust them."""
