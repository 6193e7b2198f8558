"""What others add to the router's API without changing it: routes, and hooks before and after requests. An extension is
a class that the configuration names; `extension` is all that it imports. This folder imports `http` and `api`."""
