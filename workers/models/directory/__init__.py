"""What a model directory holds, found out from its JSON files and the headers of its weights, without torch. It may
import the configuration of `workers.models` and what that imports, and the router's catalog."""
