"""Between text and tokens. It may import the messages of `router`."""
