"""The programs that execute tensor models, one folder a backend. Nothing stands here itself."""
