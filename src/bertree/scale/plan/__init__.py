"""What a model needs on many devices: memory, communication and time of a step. Arithmetic; see docs/plan.md."""
