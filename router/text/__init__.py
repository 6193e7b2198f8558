"""Text to tokens and back: what the files of a model say about its tokenizer and its chat template. Imports
`router.process`, and otherwise only these concepts themselves (`router.chat_template` and its neighbours will move
here)."""
