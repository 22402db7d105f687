"""The machine that the referee runs on: its workers, devices and environment."""
