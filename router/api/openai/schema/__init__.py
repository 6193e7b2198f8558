"""The bodies of requests as strict types: nothing is coerced, and each field has its limits. `body` says what becomes
of fields that are not listed here. It imports only `protocol`.

A field that would change the answer, and is not supported yet, is listed, but accepted only with a value that asks for
nothing. Fields that only hint are accepted with each value that OpenAI's API gives them, even where they have no
effect: `user`, `metadata`, `safety_identifier`, `prompt_cache_key`, `prompt_cache_retention`, `service_tier`, `store`,
`prediction`, `include_obfuscation`, and without tools `tool_choice` "none" and "auto" and `parallel_tool_calls`.

Checking a body holds up the event loop, so large bodies must fail fast: the check of a list ends at its first bad item,
and sizes are checked before contents.
"""
