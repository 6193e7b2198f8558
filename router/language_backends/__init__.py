"""The backends `vllm` and `tensorrtllm` of a repository: requests of tensors are answered by the generations of a
served language model. It imports `infer`, `model_repository`, `api/generation` and what lies below them."""
