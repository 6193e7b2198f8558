"""Metrics of tensor models with the names that Triton's dashboards ask for (`nv_...`), on a page and at a port of their
own. It imports `tensors`, `tensor_memory`, `config` and `http`."""
