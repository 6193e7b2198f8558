"""Products with constant weights: torch and oneDNN. Imports nothing of the project."""
