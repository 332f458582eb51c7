"""A smaller model that learns from a larger one: its start, its questions, and what came of it."""
