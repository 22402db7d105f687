"""The clock of an accelerator."""
