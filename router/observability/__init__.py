"""What people and Prometheus see: the metrics page. Explanations and traces have folders of their own. It imports
`status`, `requests`, `access`, `store` and `tracing`; what serves a request imports it only to count and to trace."""
