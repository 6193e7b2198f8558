"""What is served over HTTP, each API in a folder of its own. It may import everything but `frontends`."""
