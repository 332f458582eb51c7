"""Tokens one after the other: what computes their logits, and how they are chosen."""
