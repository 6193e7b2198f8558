"""Answers of mock workers by the rules of a file, in the vocabulary of a model. May import interface/,
models/directory/ and the router's text/; no torch."""
