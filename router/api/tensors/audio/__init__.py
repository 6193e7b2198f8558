"""`POST /v1/audio/transcriptions` and `/v1/audio/translations` over tensor models. It imports `models`, `text`, and
OpenAI's `files` and what lies below."""
