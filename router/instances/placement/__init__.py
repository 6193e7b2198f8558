"""Which host an instance goes to. Pure functions over names and numbers; imports nothing of the project."""
