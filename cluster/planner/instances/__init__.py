"""How many instances tensor models need, decided as pools of workers are: what is seen of their requests, what more and
fewer instances would make of them, and the hysteresis of `planner`. It may import `config`, `fleet` and `planner`."""
