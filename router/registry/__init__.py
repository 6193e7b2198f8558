"""The connected workers: what they said of themselves, what they are busy with, their credits, their measured speed,
and which of them cannot exchange pages. It imports only `protocol` and `kv_transfer/api`."""
