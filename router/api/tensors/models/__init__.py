"""A tensor model as an endpoint of OpenAI's shape uses it: its tensors by role, its calls, its rows, its errors. It
imports `kserve`, `access`, `config`, `http` and what lies below."""
