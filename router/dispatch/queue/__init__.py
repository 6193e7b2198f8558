"""The work queue: priority classes, fairness between tenants, deadlines, versions of the model, and estimates of how
long it will take. It imports `requests` and `registry`."""
