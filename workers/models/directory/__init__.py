"""What a model directory holds, found out from its JSON files and the headers of its weights, without torch. Imports
the router's model_files alone."""
