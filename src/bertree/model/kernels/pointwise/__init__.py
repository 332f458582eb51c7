"""Operators that compute each token alone, and that a compiler must not rewrite on a GPU: its version would be slower.

custom_ops      PyTorch's own kernels, behind a name that compilers leave alone
triton_add_norm dropout, residual sum and norm
triton_gated    activation and gate of a gated feed-forward part
triton_gelu     GELU, and the bias before it
triton_rotary   rotation of queries and keys by their places
"""
