"""Programs beside serving: load tests, the simulator, sizing by simulation, and what these share. Nothing that serves
imports them."""
