"""The bodies of OpenAI requests: typed fields, what becomes of unknown ones, errors with the field's name. It imports
`structured_output`, `protocol`, `http` for errors, and `model_files` for sampling defaults."""
