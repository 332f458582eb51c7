"""Tasks: how their files are read, which head they need, and how predictions are scored."""
