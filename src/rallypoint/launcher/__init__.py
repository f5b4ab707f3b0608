"""`rallypoint run`: start any command on every node, watch it, restart it with new ranks, and end it cleanly."""
