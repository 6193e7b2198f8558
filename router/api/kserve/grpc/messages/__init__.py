"""The protobuf messages of `inference.GRPCInferenceService` and what the router makes of them, in both directions. It
imports protobuf (through `tritonclient`), `tensors`, `tensor_memory` and what both protocols of KServe share."""
