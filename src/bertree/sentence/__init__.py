"""Vectors of sentences: made, judged, indexed, searched."""
