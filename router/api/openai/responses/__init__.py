"""OpenAI's Responses API: its requests as chats, the outputs of these as items and events, and what is stored of them.
It may import all other folders of `router/api/openai`, and `router/store`."""
