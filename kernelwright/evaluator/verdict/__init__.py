"""The stages that a candidate passes through, and its verdict."""
