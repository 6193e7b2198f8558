"""Text to tokens and back: what the files of a model say about its tokenizer and its chat template. It imports
`model_files`, `config`, `protocol` and `process`."""
