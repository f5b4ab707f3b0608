"""One suite of rendezvous behaviours, run against every backend there is, with real servers and real processes."""
