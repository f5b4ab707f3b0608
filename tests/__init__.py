"""The tests, a folder a subject; helpers are imported from here as `tests.<folder>.<module>`."""
