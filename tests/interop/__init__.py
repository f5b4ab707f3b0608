"""Real torch beside ours: clients of the one on servers of the other, and torch's own stores as the reference."""
