"""The training loop and what surrounds it: schedule, optimizers, batches, checkpoints, evaluation, progress."""
