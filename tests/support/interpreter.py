"""Where Triton's kernels are tried: on a GPU, or on the CPU with TRITON_INTERPRET=1."""

import importlib.util
import os

import pytest
import torch

INTERPRETED = importlib.util.find_spec("triton") is not None and os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
DTYPE = torch.float32 if INTERPRETED else torch.bfloat16

needs_triton = pytest.mark.skipif(
    not INTERPRETED and not torch.cuda.is_available(), reason="needs CUDA, or Triton with TRITON_INTERPRET=1"
)
