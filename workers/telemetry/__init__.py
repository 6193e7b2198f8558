"""What a worker says about itself, to the router and to people. Imports the messages and what a worker is built of."""
