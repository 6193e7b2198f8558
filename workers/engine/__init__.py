"""The native engine: requests in, tokens out, one step at a time. May import its own folders,
config/, interface/ and models/."""
