"""OpenAI's Responses API: its endpoints, and what they keep in the store. It may import all other folders of
`router/api/openai`, and `router/store`."""
