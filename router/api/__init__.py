"""What is served over HTTP, each API in a folder of its own; here is what all of them keep of a request. It imports
`http`, `http/failover`, `access`, `store` and `observability`."""
