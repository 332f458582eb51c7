"""The models and indexes that a server offers, by name."""
