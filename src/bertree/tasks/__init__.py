"""The papers' tasks and one's own: read a file, say which head it needs, score what comes out of it."""
