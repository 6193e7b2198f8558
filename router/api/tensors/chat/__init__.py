"""Chat and plain completions by models that take and give text. It imports `models`, `text`, OpenAI's `answer` and
`schema`, and what lies below."""
