"""Which pipeline serves a model, and which of its stages a request visits. Pure."""
