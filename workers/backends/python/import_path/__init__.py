"""The modules that the code of a model imports by name. An instance has this folder on its `sys.path`. It imports
`model_api`."""
