"""A node's side: its session with the server, its link, and a membership for threads that wait."""
