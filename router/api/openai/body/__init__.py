"""The bodies of OpenAI requests: typed fields, what becomes of unknown ones, errors with the field's name. It imports
`structured_output` and `protocol`."""
