"""The layout of keys and values in pages, plain and quantised to eight bits. Imports nothing of the project."""
