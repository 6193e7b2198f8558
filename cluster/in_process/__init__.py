"""The server within another program: `slipstream.Server`, with the classes of Triton's Python API for its server.
The router and an instance host run in a thread of the program. It may import all folders but the driver, the
commands and the tools."""
