"""What runs while a server within a program is started: its thread, and in it a router and an instance host. It imports
`interface`, the router and the instance host."""
