"""The store in a file that processes share."""
