"""What people and Prometheus see: the metrics page. Explanations and traces have folders of their own. Nothing that
serves a request imports it but to count."""
