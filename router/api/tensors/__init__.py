"""APIs of OpenAI's shape over tensor models and ensembles: which endpoint answers at which path. It imports the folders
in it, `openai` and what lies below."""
