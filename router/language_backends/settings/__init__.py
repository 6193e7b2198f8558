"""What the files of a repository say of a language model: settings of its engine, defaults of its requests. It imports
`model_repository` and what lies below it."""
