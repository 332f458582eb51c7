"""The verbs of an index."""
