"""The answer to a generation request: its choices as text and as JSON, whole or as events, and its failures. It
imports `text`, `parsers`, `requests`, `http` and what lies below, nothing else of the API."""
