"""The tensor API: what KServe v2 is, whatever protocol it comes by. It imports `infer`, `tensors`, `tensor_memory` and
what lies below them; `http` and `grpc` in it are the protocols."""
