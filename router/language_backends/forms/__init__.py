"""The tensors of `vllm` and `tensorrtllm`: requests are read, and responses written. It imports `settings` and
`generation` beside it, and what lies below them."""
