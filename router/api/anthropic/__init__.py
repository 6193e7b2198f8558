"""Anthropic's Messages API: its bodies, answers and errors. Each request becomes a chat, which `api/generation` serves;
it imports that, and what lies below."""
