"""PyTorch's compiler, imported only where something is compiled: it takes seconds."""


def prepare_compiler() -> None:
    """Make compiled code draw the same random numbers as uncompiled code, and compute the same bytes every time if
    `set_deterministic` asked for that."""
    import torch._inductor.config

    torch._inductor.config.fallback_random = True  # PyTorch's dropout kernel draws four numbers at a time, Triton's one
    # Sets the compiler's flag too.
    torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled(), warn_only=True)
