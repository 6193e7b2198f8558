"""Text to tokens and back: what the files of a model say about its tokenizer and its chat template. It imports
`process` and `model_files`."""
