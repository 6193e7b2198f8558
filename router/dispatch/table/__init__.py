"""All requests that have not finished, and the gates that they came in by: admission and the choice of a version. It
imports `dispatch/queue`, `placement` and what lies below."""
