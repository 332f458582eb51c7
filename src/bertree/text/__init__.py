"""Files -> tokens. Nothing here imports torch."""
