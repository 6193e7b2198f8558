"""Client connections that outlive the router's process: `holder` keeps the sockets, and a journal in memory that the
next router reads says how far each answer has come. It imports `http` and what lies below."""
