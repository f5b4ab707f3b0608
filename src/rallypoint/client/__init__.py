"""A node's membership for threads that wait: what every hosting whose server pushes shares."""
