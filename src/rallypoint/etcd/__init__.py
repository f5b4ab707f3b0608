"""Hosting 2: an elected leader runs the core on what it watches in etcd v3, and publishes what comes of it.

Nodes write what they say under `in/`, each on a lease of its own; the leader alone writes under `out/`, and only as long
as it is the leader.  `leading` and `following` decide, `leader` and `link` are the threads around them.
"""
