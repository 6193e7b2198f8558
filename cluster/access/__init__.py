"""Who may call the admin API: its single token, and the file of named tokens with their roles. It may import
`config`."""
