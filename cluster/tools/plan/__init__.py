"""`slipstream plan`: searches by simulation for the deployment that serves a workload best. It may import `config`,
`terminal`, `sim`, `report` and `workload`."""
