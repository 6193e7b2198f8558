"""The engine of a simulated worker: which steps it makes, how long they take, and where its pages are. It may import
`sim.hardware`, `workload` and the mock workers."""
