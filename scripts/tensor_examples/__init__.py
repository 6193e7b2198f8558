"""Example models for the endpoints of OpenAI's shape over tensor models."""
