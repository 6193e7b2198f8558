"""`slipstream sim`: the production dispatcher over simulated workers in virtual time, with faults and planner. It may
import `config`, `fleet`, `planner`, `terminal` and the other tools but `bench` and `plan`."""
