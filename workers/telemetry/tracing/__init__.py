"""What a worker does for requests that are traced, reported to the router, which makes the spans. It may import what
`telemetry` may."""
