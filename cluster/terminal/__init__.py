"""What the commands print: lines with times and one status line that changes, and the error that ends a command with
one sentence. It imports nothing of `cluster`."""
