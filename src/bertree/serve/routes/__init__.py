"""The routes, by the interface they belong to."""
