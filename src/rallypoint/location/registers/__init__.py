"""Registers: one small file per medium."""
