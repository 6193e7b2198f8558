"""What all RPCs have in common: who may call them, what their metadata say, and how they fail. It imports `access`,
`config`, `tensors` and the `messages`."""
