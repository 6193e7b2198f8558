"""Agent loops with the clients that people use. Each module is a program, which runs in an environment with its client
alone: `python -m scripts.agents.loops.NAME URL` prints a line of JSON for each of its loops."""
