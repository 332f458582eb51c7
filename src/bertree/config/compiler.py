"""PyTorch's compiler, imported only where something is compiled: it takes seconds."""


def prepare_compiler() -> None:
    """Make compiled code draw the random numbers of code that is not, and compute the same bytes every time if that is
    asked for."""
    import torch._inductor.config

    torch._inductor.config.fallback_random = True  # PyTorch's dropout kernel draws four numbers at a time, Triton's one
    # Tells the compiler what PyTorch's own kernels know already.
    torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled(), warn_only=True)
