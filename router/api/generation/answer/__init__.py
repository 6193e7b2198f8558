"""From the tokens of generations to the choices of an answer, whole or as events, in whatever format, and its failures.
It imports `text`, `parsers`, `requests`, `http` and what lies below."""
