"""How pages become messages of a transport, and which transport a rank opens by its settings. Imports the other folders
of `kv_transfer`."""
