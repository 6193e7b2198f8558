"""OpenAI's Batch API: requests in a file, served one by one as if clients had sent them, behind all others; and their
answers in a file. It imports `api`, `api/openai/files`, `access`, `http`, `config`, `observability` and `store`."""
