"""What all clocks share: sides that take turns in windows, and the check of outputs by such windows."""
