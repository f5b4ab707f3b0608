"""Tests of the document hosting."""
