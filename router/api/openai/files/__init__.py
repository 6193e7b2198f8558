"""OpenAI's Files API: what clients upload for batches, and what batches leave for them, in the store. It imports `api`,
`http` and `store`."""
