"""How many instances models have while they serve: by demand, within bounds, or as an operator says. May import
`router/infer`, `router/config` and `router/status`."""
