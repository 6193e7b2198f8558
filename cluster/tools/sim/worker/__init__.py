"""A simulated worker as its router sees it: attempts, reservations, migrations and credits as messages. It may import
`sim.engine` and `sim.hardware`."""
