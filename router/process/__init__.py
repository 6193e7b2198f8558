"""The operating system's side of a process: the limits of its container, its listening sockets, log level, garbage
collector and cache folder, and commands of further processes; and tasks in the background of its event loop. It imports
no other folder of the router."""
