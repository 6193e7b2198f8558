"""The model's directory while its versions are served: whether its files still are those of each version. May import
`fleet`, `deployment` and the router's catalog."""
