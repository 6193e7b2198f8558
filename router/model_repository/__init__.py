"""A Triton model repository: folders, versions and their models, what changes in them, and what is wrong with them. It
imports `config`, `model_repository.config`, `model_files` and `tensors`. It reads files and blocks, and knows no
instances."""
