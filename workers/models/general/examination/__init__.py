"""What is found out about a general model and its checkpoint before it is loaded, in a process of its own or in a
worker. Imports models/general."""
