"""Which worker has which KV pages cached, and which conversations live where. It imports `registry`, `requests`,
`status` and `protocol`."""
