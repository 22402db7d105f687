"""Statistics of timing, and the metrics of the field."""
