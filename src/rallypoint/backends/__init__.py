"""What makes a membership on each backend: its options, where its server is found, and the records of its runs."""
