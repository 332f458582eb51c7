"""Files -> documents -> tokens. Nothing here imports torch."""
