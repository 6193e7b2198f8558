"""`slipstream bench` of tensor models: by KServe's protocol over HTTP or gRPC, or within this process. It may import
`bench.client`, `bench.load`, `report` and `cluster/in_process`."""
