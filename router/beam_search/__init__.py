"""Beam search over generations of one token each: the search itself, and what drives it. May import protocol and
requests."""
