"""Resources that executions of all models share (Triton's rate limiter). It imports only `tensors`."""
