"""Checkpoints: their folder, their files, and what they hold."""
