"""What all generating APIs have in common: a request is prepared, let in, submitted and answered. The common form of a
chat is that of OpenAI (`openai/body`), and so are the formats that are written unless an API has its own."""
