"""Every private function of PyTorch that this project calls.

PyTorch may change them in any release. Each function here says what it wraps, why nothing public serves, and since
which release it is known; all of them are used with 2.11, the oldest supported release, to 2.13.
`tests/model/test_torch_internals.py` compares their signatures and results with what is expected. Not collected here:
`torch._foreach_*` and the ATen operators without an underscore, which PyTorch documents.

Shape letters: t tokens, i input width, o output width, n heads, d head width, s sequences, q queries, k keys.
"""

import platform
import sys
from collections.abc import Callable
from inspect import unwrap
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

Method = TypeVar("Method", bound=Callable[..., Any])


# The compiler. Importing it takes seconds, so nothing imports it before something is compiled.


def prepare_compiler() -> None:
    """Make compiled code draw the same random numbers as uncompiled code, and compute the same bytes every time if
    `set_deterministic` asked for that.

    Sets `torch._inductor.config.fallback_random` (known: 2.11): PyTorch's dropout kernel draws four numbers at a time,
    Triton's one. There is no public setting.
    """
    import torch._inductor.config

    torch._inductor.config.fallback_random = True
    # Sets the compiler's flag too.
    torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled(), warn_only=True)


def is_compiler_imported() -> bool:
    """Return whether something imported the compiler and its settings (known: 2.11)."""
    return "torch._inductor.config" in sys.modules


def limit_recompilations(graphs: int) -> None:
    """Let the compiler compile a function for this many different inputs, instead of 8.

    Sets `torch._dynamo.config.recompile_limit` (known: 2.11; older releases call it `cache_size_limit`). There is no
    public setting.
    """
    import torch._dynamo.config

    torch._dynamo.config.recompile_limit = graphs


def eager_method(method: Method) -> Method:
    """Return a method of `torch.optim.Optimizer` without the wrapper that hides it from `torch.compile`.

    The wrapper's first call imports the compiler, which takes longer than all steps of a short run (`inspect.unwrap` of
    `torch._disable_dynamo`, known: 2.11). Optimizers are not compiled here, so they need no wrapper.
    """
    return unwrap(method)


# Attention on the CPU.


def has_flash_attention_for_cpu() -> bool:
    """Return whether this build of PyTorch has flash attention for the CPU."""
    return hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu")


def flash_attention_for_cpu(
    q_snqd: Tensor, k_snkd: Tensor, v_snkd: Tensor, is_causal: bool = False, attn_mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return mixed values (s x n x q x d) and the log-sum-exp of the scores (s x n x q).

    The kernel of `scaled_dot_product_attention` (known: 2.11), which does not return the log-sum-exp. The backward pass
    needs it, and an operator of our own cannot use autograd.
    """
    mixed: tuple[Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q_snqd, k_snkd, v_snkd, is_causal=is_causal, attn_mask=attn_mask
    )
    return mixed


def flash_attention_for_cpu_backward(
    grad_snqd: Tensor,
    q_snqd: Tensor,
    k_snkd: Tensor,
    v_snkd: Tensor,
    mixed_snqd: Tensor,
    sums_snq: Tensor,
    *,
    is_causal: bool = False,
    attn_mask: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values, from the results of `flash_attention_for_cpu` (known: 2.11)."""
    grads: tuple[Tensor, Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad_snqd, q_snqd, k_snkd, v_snkd, mixed_snqd, sums_snq, 0.0, is_causal, attn_mask=attn_mask
    )
    return grads


# Linear layers on the CPU by oneDNN. The public `F.linear` lays out the weights at every call and fuses nothing.


def pack_linear_weight(weight_oi: Tensor) -> Tensor:
    """Lay out a weight (float32 or bfloat16) for `packed_linear` (known: 2.11)."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight_oi)
    return packed


def packed_linear(
    x_ti: Tensor, packed: Tensor, bias_o: Tensor | None, activation: str = "none", algorithm: str = ""
) -> Tensor:
    """Multiply by a packed weight, add a bias and apply an activation in one pass (known: 2.11)."""
    out_to: Tensor = torch.ops.mkldnn._linear_pointwise(x_ti, packed, bias_o, activation, [], algorithm)
    return out_to


def packed_linear_plus(x_ti: Tensor, residual_to: Tensor, packed: Tensor, bias_o: Tensor | None) -> Tensor:
    """Multiply by a packed weight, add a bias and a residual in one pass (known: 2.11)."""
    out_to: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x_ti, residual_to, packed, bias_o, "add")
    return out_to


def pack_int8_weight(weight_oi: Tensor) -> Tensor:
    """Lay out an int8 weight for `int8_linear` (known: 2.11)."""
    packed: Tensor = torch.ops.onednn.qlinear_prepack(weight_oi, None)
    return packed


def int8_linear(x_ti: Tensor, zero_point: int, packed: Tensor, scale_o: Tensor, zero_o: Tensor) -> Tensor:
    """Multiply unsigned 8-bit integers by a packed int8 weight; the result is float32 (known: 2.11).

    `scale_o`, `zero_o`: scale and zero point of each output channel. The scale of `x_ti` is 1, and there is no bias.
    """
    out_to: Tensor = torch.ops.onednn.qlinear_pointwise(
        *(x_ti, 1.0, zero_point, packed, scale_o, zero_o, None), *(1.0, 0, torch.float32, "none", [], "")
    )
    return out_to


def cpu_has_bfloat16() -> bool:
    """Return whether this CPU has instructions for bfloat16 (AVX512-BF16 or AMX on x86, BF16 on ARM).

    Others emulate it, several times slower than float32. Wraps `torch.cpu._is_avx512_bf16_supported`,
    `torch.cpu._is_amx_tile_supported` and `mkldnn::_is_mkldnn_bf16_supported` (known: 2.11); the public
    `torch.cpu.get_capabilities` is known in 2.13 only.
    """
    if platform.machine().lower() in ("x86_64", "amd64"):
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    check = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return check is not None and bool(check())


# Collectives that a compiler can trace. Those of `torch.distributed` write into their arguments, where a graph breaks.


def all_reduce(x: Tensor, operation: str, group: str) -> Tensor:
    """Return the sum, or another reduction, over the ranks of the group of that name (known: 2.11)."""
    return _wait(torch.ops._c10d_functional.all_reduce(x, operation, group))


def all_gather_rows(x: Tensor, ranks: int, group: str) -> Tensor:
    """Return the rows of all ranks, one rank after the other (known: 2.11)."""
    return _wait(torch.ops._c10d_functional.all_gather_into_tensor(x, ranks, group))


def reduce_scatter_rows(x: Tensor, ranks: int, group: str) -> Tensor:
    """Return this rank's share of the rows of the sum over the ranks (known: 2.11)."""
    return _wait(torch.ops._c10d_functional.reduce_scatter_tensor(x, "sum", ranks, group))


def _wait(pending: Tensor) -> Tensor:
    complete: Tensor = torch.ops._c10d_functional.wait_tensor(pending)
    return complete


def is_view(x: Tensor) -> bool:
    """Return whether a tensor is a view of another (`Tensor._is_view`, known: 2.11; there is no public name)."""
    return x._is_view()


def has_forward_hooks(module: nn.Module) -> bool:
    """Return whether a call of a module runs hooks too (`_forward_hooks`, `_forward_pre_hooks`, known: 2.11).

    Code that computes from a module's weights without calling it would leave them out. There is no public way to ask.
    """
    return bool(module._forward_hooks or module._forward_pre_hooks)
