"""The formats of the models, each a description. It imports `description`."""
