"""Which instances a version of a model has, and how they begin, live and change, without clock and I/O. May import
`router/instances`, `router/model_repository` and what lies below them."""
