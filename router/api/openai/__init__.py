"""The OpenAI API: its endpoints. It imports its `body`, `api/generation`, `catalog`, `access`, `http` and what lies
below."""
