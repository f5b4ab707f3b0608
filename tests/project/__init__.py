"""Tests of the project itself: its layers, its tidiness, and its promises to users."""
