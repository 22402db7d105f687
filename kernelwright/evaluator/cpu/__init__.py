"""The clock of this CPU: doors, inputs in shared memory, samples of where time goes, data races."""
