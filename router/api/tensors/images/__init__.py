"""`POST /v1/images/generations` over tensor models. It imports `models`, `text`, OpenAI's `schema` and what lies
below."""
