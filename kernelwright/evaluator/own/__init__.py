"""Evidence on how much of the work a candidate's own kernels do."""
