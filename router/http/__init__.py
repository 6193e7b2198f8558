"""An HTTP/1.1 server on asyncio: connections, requests, routes, TLS, time-outs, CORS. It knows nothing of models, and
imports only `config`, `process` and `protocol`."""
