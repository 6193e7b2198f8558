"""The settings of a router and of access to it, as the deployment's YAML has them. It imports only `protocol`."""
