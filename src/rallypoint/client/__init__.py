"""A node's membership for threads that wait: what every hosting whose authority pushes shares."""
