"""What the code of a model sees: `triton_python_backend_utils` and its classes. It runs in the model's interpreter
(Python 3.8 or later, with numpy), and imports nothing else of ours."""
