"""The OpenAI API: endpoints, answers whole and as events. It imports its `body`, `text`, `catalog`, `access`,
`requests`, `http` and what lies below; the service that takes its requests is a Protocol here."""
