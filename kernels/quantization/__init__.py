"""Quantised weights in one canonical form for each kind, with their reference. Imports nothing of the project."""
