"""The way of a candidate through all stages, and its verdict."""
