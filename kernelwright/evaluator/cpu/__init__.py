"""The clock of this CPU: doors, inputs, turns, the check."""
