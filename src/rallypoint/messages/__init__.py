"""What nodes and their server say to each other: requests, notices, and the nouns in them.  Both ends share it."""
