"""A model's output taken apart: reasoning, content, calls of tools. `description/` says what a format is, `formats/`
has those of the models, `readers/` read the parts of a call, `grammar/` makes what workers follow. Only the last
imports other folders of the router."""
