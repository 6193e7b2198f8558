"""Pages for operators about requests and workers. It imports `dispatch`, `observability` and `http`."""
