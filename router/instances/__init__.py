"""The router's side of instances of tensor models: the port to which hosts and instances connect, their messages, and
the links. Its protocol: docs/design/instance_protocol.md. It imports only `tensors`, `tensor_memory`, `process` and
`tls`."""
