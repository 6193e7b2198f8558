"""The served model: its name, its tokenizer, its sampling defaults, and the files that they are read from. It imports
`text`, `model_files` and `config`."""
