"""A tensor-parallel group: the executor on rank 0, the other ranks, and the control links between them. May import
config/, engine/, models/, process/, telemetry/ and transfers/."""
