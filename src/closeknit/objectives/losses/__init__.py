"""The losses: one family of the field per file, each with the builder of its named objective."""
