"""Fuzzing of everything that reads bytes of unknown callers: `make fuzz MINUTES=5`, or `python -m fuzz server --seconds 60`."""
