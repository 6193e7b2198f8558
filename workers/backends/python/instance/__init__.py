"""The program that runs one instance of a Python model (docs/design/instance_protocol.md). It runs in the model's
interpreter (Python 3.8 or later, with numpy), and imports `model_api`."""
