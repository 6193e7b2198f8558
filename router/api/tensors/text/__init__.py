"""Texts for tensor models: tokenised, or as they are, as rows. It imports `models`, `text` and what lies below."""
