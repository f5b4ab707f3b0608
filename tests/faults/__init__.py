"""Real processes, real signals, real sockets: what the hosting by a server promises when things go wrong."""
