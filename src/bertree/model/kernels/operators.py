"""Operators of our own: calls that a compiler sees as one and does not look into.

`operator` declares one. `torch.library.custom_op` does the same, but imports PyTorch's compiler when an operator is
first called, which costs every training command two seconds of CPU time. Operators that run without a compiler are
declared here instead, with the functions that `custom_op` uses. What it checks is not checked here: a result must not
share memory with an argument, and a name can be declared once.

Below are operators that a compiler must not rewrite on a GPU, because its version is slower or not deterministic.
Elsewhere they are PyTorch's own functions.

Shape letters: t tokens, h width, v rows of a table, e their width.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, library
from torch.library import custom_op, register_autograd

Fake = TypeVar("Fake", bound=Callable[..., Any])


def operator(name: str, differentiable: bool = True) -> Callable[[Callable[..., Any]], Any]:
    """Declare a function as an operator that changes none of its arguments.

    `name`: bertree::something; `fake_of` and `torch.library.register_autograd` take it too. `differentiable`: False for
    one whose gradient is refused."""

    def declare(kernel: Callable[..., Any]) -> Any:
        schema = library.infer_schema(kernel, mutates_args=())
        library.define(name, schema, tags=(torch.Tag.pt2_compliant_tag,))
        library.impl(name, "CompositeExplicitAutograd", kernel)
        if not differentiable:
            library.register_autograd(name, _refuse)
        space, _, own = name.partition("::")
        return getattr(getattr(torch.ops, space), own).default

    return declare


def fake_of(name: str) -> Callable[[Fake], Fake]:
    """Declare a function that says what an operator returns, for compilers: its shape, type and device."""

    def declare(fake: Fake) -> Fake:
        library.register_fake(name, fake)
        return fake

    return declare


def _refuse(ctx: Any, *grads: Any) -> Any:
    raise RuntimeError("a gradient of a gradient is not available here")


def look_up(table_ve: Tensor, ids_t: Tensor) -> Tensor:
    """Look up rows of an embedding table.

    A compiler turns the gradient into additions that collide at every frequent token: slow, and in another
    order each time. PyTorch's own kernel sorts the ids first.
    """
    rows_te: Tensor = _look_up(table_ve, ids_t) if table_ve.is_cuda else F.embedding(ids_t, table_ve)
    return rows_te


def rotary_angles(positions_t: Tensor, head_width: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the angles of positions, position / base^(2 i / d) (each t x 1 x d / 2, float32).

    A compiler computes powers, cosines and sines again for every query and key of every layer, forwards and backwards.
    """
    angles = (
        _rotary_angles(positions_t, head_width, base) if positions_t.is_cuda else _angles(positions_t, head_width, base)
    )
    return angles[0], angles[1]


def _angles(positions_t: Tensor, head_width: int, base: float) -> Tensor:
    exponents = torch.arange(0, head_width, 2, dtype=torch.float32, device=positions_t.device) / head_width
    angles = positions_t[:, None, None].float() * (1.0 / base**exponents)
    return torch.stack([angles.cos(), angles.sin()])


def permute_rows(x_th: Tensor, order_t: Tensor, positions_t: Tensor) -> Tensor:
    """Put rows in another order; `places_t` says where each row goes, `order_t` where each comes from.

    The gradient is the way back. PyTorch, which cannot know that no row is read twice, would sort the order first.
    """
    permuted: Tensor = _permute_rows(x_th, order_t, positions_t)
    return permuted


@custom_op("bertree::rotary_angles", mutates_args=())
def _rotary_angles(positions_t: Tensor, head_width: int, base: float) -> Tensor:
    return _angles(positions_t, head_width, base)


@operator("bertree::permute_rows")
def _permute_rows(x_th: Tensor, order_t: Tensor, positions_t: Tensor) -> Tensor:
    return x_th.index_select(0, order_t)


@custom_op("bertree::look_up", mutates_args=())
def _look_up(table_ve: Tensor, ids_t: Tensor) -> Tensor:
    return F.embedding(ids_t, table_ve)


@custom_op("bertree::look_up_backward", mutates_args=())
def _look_up_backward(grad_te: Tensor, ids_t: Tensor, rows: int) -> Tensor:
    return torch.ops.aten.embedding_dense_backward(grad_te, ids_t, rows, -1, False)


@_rotary_angles.register_fake
def _(positions_t: Tensor, head_width: int, base: float) -> Tensor:
    return positions_t.new_empty((2, len(positions_t), 1, head_width // 2), dtype=torch.float32)


@fake_of("bertree::permute_rows")
def _(x_th: Tensor, order_t: Tensor, positions_t: Tensor) -> Tensor:
    return x_th.new_empty(x_th.shape)


@_look_up.register_fake
def _(table_ve: Tensor, ids_t: Tensor) -> Tensor:
    return table_ve.new_empty(*ids_t.shape, table_ve.shape[1])


@_look_up_backward.register_fake
def _(grad_te: Tensor, ids_t: Tensor, rows: int) -> Tensor:
    return grad_te.new_empty(rows, grad_te.shape[-1])


def _keep_orders(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:])


def _back_to_places(ctx: Any, grad_th: Tensor) -> tuple[Tensor, None, None]:
    order_t, positions_t = ctx.saved_tensors
    return _permute_rows(grad_th.contiguous(), positions_t, order_t), None, None


def _keep_ids(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])
    ctx.rows = len(inputs[0])


def _back_to_rows(ctx: Any, grad_te: Tensor) -> tuple[Tensor, None]:
    return _look_up_backward(grad_te.contiguous(), ctx.saved_tensors[0], ctx.rows), None


register_autograd("bertree::permute_rows", _back_to_places, setup_context=_keep_orders)
_look_up.register_autograd(_back_to_rows, setup_context=_keep_ids)
