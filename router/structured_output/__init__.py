"""From the JSON schema, regex or grammar of a request to the grammar that workers constrain outputs with, tried in a
process of its own. It imports `protocol` and its `json_schema`."""
