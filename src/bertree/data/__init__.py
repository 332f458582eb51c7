"""Token store -> batches."""
