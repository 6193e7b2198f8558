"""Runs what a tensor request asks of a language model, whatever its tensors look like. It imports `infer`,
`api/generation` and what lies below them."""
