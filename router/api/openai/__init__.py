"""The OpenAI API: endpoints, answers whole and as events. It imports `dispatch` for its service, `text`, `catalog` and
`http`."""
