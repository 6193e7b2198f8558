"""`POST /v1/embeddings` over tensor models. It imports `models`, `text`, OpenAI's `schema` and what lies below."""
