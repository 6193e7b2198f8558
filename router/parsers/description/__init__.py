"""What a model's output looks like: where its reasoning and its calls of tools stand, and how a call is written. Parser
and grammar read it. It imports nothing of ours."""
