"""What a worker does with the router's messages, without I/O: the attempts of each role, credits, drain. May import
interface/, telemetry/ and transfers/."""
