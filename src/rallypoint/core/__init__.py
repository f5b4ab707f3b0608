"""The core: a rendezvous as one pure function (`transition.step`), and nothing that touches the world.

Read `model`, then `transition`; `sealing`, `joining`, `leaving` and `recovery` are its chapters.
"""
