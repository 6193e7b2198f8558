"""Rolling updates: a state machine that takes the observed state and returns actions, and the object that performs
them. It may import `config`, `fleet`, `repository` and `ray`."""
