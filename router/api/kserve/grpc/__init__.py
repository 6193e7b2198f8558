"""KServe v2 over gRPC: `inference.GRPCInferenceService` and `grpc.health.v1.Health`. Only a process that serves a
repository imports it, because it needs grpcio. It imports its `messages`, `access`, `config` and what both protocols of
KServe share."""
