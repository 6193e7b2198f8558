"""Scores of documents for a query over tensor models: the form of Jina, Cohere and vLLM. It imports `embeddings`,
`text`, `models` and what lies below."""
