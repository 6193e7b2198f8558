"""What happens to responses besides their sending: the cache that keeps them, and the order in which they leave. It
imports only `tensors`."""
