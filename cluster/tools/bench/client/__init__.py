"""A streaming client that costs little: the server to measure, requests, connections and answers. It may import
`workload`."""
