"""The JSON of chat completions and completions, whole and as events. It imports `api/generation/answer`, `parsers`,
`text` and what lies below."""
