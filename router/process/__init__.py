"""What a process finds around it: the limits of its container. Imports nothing of the other folders."""
