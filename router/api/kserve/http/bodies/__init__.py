"""Bodies of KServe v2 over HTTP: requests from them, and of responses. It imports `kserve`, and of the router's `http`
what decompresses."""
