"""Inputs to check on, how far a right answer may be off, and the judgement of outputs."""
