"""The loop and what surrounds it: plan, optimisers, batches, checkpoints, evaluation, progress, report."""
