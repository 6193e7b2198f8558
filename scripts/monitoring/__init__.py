"""What is generated from the metrics: their page in the reference and Grafana's dashboards. It imports the code that
makes the metrics."""
