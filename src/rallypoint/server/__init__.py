"""The server: it owns the core; nodes connect, join, and are told by push.  `service` brings the sockets."""
