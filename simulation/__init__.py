"""Seeded worlds with a virtual clock and network that drive the production core.  Nothing imports this package.

The simulation decides only what happens to a run: when messages arrive, which process dies, what stalls.  How the run
reacts is decided by `rallypoint.core` alone.
"""
