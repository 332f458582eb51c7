"""Training on many devices: how a model is split, what fits, and what it costs."""
