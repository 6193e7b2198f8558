"""Where the models of a repository are: local folders and remote ones, what is in them, and when it changes. It imports
`model_files`."""
