"""Pages for operators about requests and workers. It imports `observability/explain`, `requests` and `http`; of the
dispatcher it knows Protocols."""
