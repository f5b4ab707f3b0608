"""Hosting 3: everyone edits one document by compare-and-set; for any backend with `get_state` and `set_state`.

Nobody owns the run.  Each node reads the document, lets the core judge its own event on it, and writes the outcome back
if nobody else was faster.
"""
