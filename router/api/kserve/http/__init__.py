"""KServe v2 over HTTP, with Triton's extensions. It imports `kserve`, `http` and the API's context."""
