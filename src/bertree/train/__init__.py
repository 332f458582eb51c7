"""The training loop and what surrounds it: plan, optimizers, batches, checkpoints, evaluation, progress."""
