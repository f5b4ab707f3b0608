"""Seeded worlds with a virtual clock and network that drive the production core.  Nothing imports this package.

The simulation decides only what the world does to a run: when messages arrive, who dies, what stalls.  What a run makes
of it is decided by `rallypoint.core` alone.
"""
