"""`slipstream plan --repository`: searches by measuring for the instances and the batching of a tensor model, and
writes them into its `config.pbtxt`. It may import `bench`, `report` and the router's model repository."""
