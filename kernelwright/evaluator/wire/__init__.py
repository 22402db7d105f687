"""What both ends of a worker's socket agree on. Workers import it, so it needs neither torch nor pydantic."""
