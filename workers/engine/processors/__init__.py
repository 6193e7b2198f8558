"""Logits processors: functions of an operator's own that change the scores of a request's next token. May import
engine/limits."""
