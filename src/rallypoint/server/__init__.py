"""Hosting 1: a server owns the core; nodes connect, join, and are told by push.

`protocol` is what goes over the wire, `coordinator` and `session` are the two ends of it, all sans-IO; `service` and
`link` are the thin shells that bring sockets and clocks.
"""
