"""Models that are written in Python, as Triton's Python backend takes them: the command that starts an instance, and
the environment it runs in. It imports the standard library alone."""
