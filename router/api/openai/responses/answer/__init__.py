"""The output of a chat as a response: its items, whole and as events. It imports `body`."""
