"""This machine as the referee sees it: workers, devices, environment."""
