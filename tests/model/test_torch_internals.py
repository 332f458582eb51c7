"""Private functions of PyTorch still are as `torch_internals` expects them: this fails first on a release that changed
one, and names it."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import bertree
from bertree.model import torch_internals as internals

SCHEMAS = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": "(Tensor query, Tensor key, Tensor value, float dropout_p=0., "
    "bool is_causal=False, *, Tensor? attn_mask=None, float? scale=None) -> (Tensor output, Tensor logsumexp)",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": "(Tensor grad_out, Tensor query, Tensor key, "
    "Tensor value, Tensor out, Tensor logsumexp, float dropout_p, bool is_causal, *, Tensor? attn_mask=None, "
    "float? scale=None) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value)",
    "mkldnn::_linear_pointwise": "(Tensor X, Tensor W, Tensor? B, str attr, Scalar?[] scalars, str? algorithm) "
    "-> Tensor Y",
    "mkldnn::_linear_pointwise.binary": "(Tensor X, Tensor other, Tensor W, Tensor? B, str attr) -> Tensor Y",
    "mkldnn::_reorder_linear_weight": "(Tensor self, int? batch_size=None) -> Tensor Y",
    "onednn::qlinear_prepack": "(Tensor weight, int[]? x_shape) -> Tensor",
    "onednn::qlinear_pointwise": "(Tensor qx, float x_scale, int x_zero_point, Tensor qw, Tensor w_scale, "
    "Tensor w_zero_point, Tensor? bias, float output_scale, int output_zero_point, ScalarType? output_dtype, "
    "str post_op_name, Scalar?[] post_op_args, str post_op_algorithm) -> Tensor",
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_an_operator_has_the_expected_signature(name: str) -> None:
    space, _, rest = name.partition("::")
    operator, _, overload = rest.partition(".")
    schema = str(getattr(getattr(getattr(torch.ops, space), operator), overload or "default")._schema)
    assert schema == f"{name}{SCHEMAS[name]}", f"PyTorch {torch.__version__} changed {name}"


def test_flash_attention_gives_what_the_public_function_gives() -> None:
    assert internals.has_flash_attention_for_cpu()
    q, k, v = (torch.randn(2, 3, 5, 8, requires_grad=True) for _ in range(3))
    for causal, mask in ((False, None), (True, None), (False, torch.randn(5, 5))):
        expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        grad = torch.randn_like(expected)
        with torch.no_grad():
            mixed, sums = internals.flash_attention_for_cpu(q, k, v, causal, mask)
            grads = internals.flash_attention_for_cpu_backward(
                grad, q, k, v, mixed, sums, is_causal=causal, attn_mask=mask
            )
        assert torch.allclose(mixed, expected, atol=1e-5)
        for left, right in zip(grads, torch.autograd.grad(expected, (q, k, v), grad), strict=True):
            assert torch.allclose(left, right, atol=1e-5)
    scores = q @ k.mT * 8**-0.5
    _, sums = internals.flash_attention_for_cpu(q.detach(), k.detach(), v.detach())
    assert torch.allclose(sums, scores.logsumexp(-1), atol=1e-5), "the second result is the log-sum-exp"


@torch.no_grad()
def test_packed_linear_layers_give_what_the_public_function_gives() -> None:
    x, linear, residual = torch.randn(7, 32), nn.Linear(32, 16), torch.randn(7, 16)
    packed = internals.pack_linear_weight(linear.weight)
    expected = linear(x)
    assert torch.allclose(internals.packed_linear(x, packed, linear.bias), expected, atol=1e-5)
    activated = internals.packed_linear(x, packed, linear.bias, "gelu", "tanh")
    assert torch.allclose(activated, F.gelu(expected, approximate="tanh"), atol=1e-5)
    joined = internals.packed_linear_plus(x, residual, packed, linear.bias)
    assert torch.allclose(joined, expected + residual, atol=1e-5)


def test_int8_products_are_exact() -> None:
    torch.manual_seed(0)
    x = torch.randint(0, 128, (5, 32), dtype=torch.uint8)  # from 128 on, the products overflow on a CPU without VNNI
    weight = torch.randint(-127, 128, (16, 32), dtype=torch.int8)
    scale, zero = torch.rand(16), torch.zeros(16, dtype=torch.int32)
    product = internals.int8_linear(x, 64, internals.pack_int8_weight(weight), scale, zero)
    expected = (x.double() - 64) @ weight.double().T * scale
    assert product.dtype == torch.float32
    assert torch.allclose(product.double(), expected, rtol=1e-5)


def test_bfloat16_support_is_known() -> None:
    assert isinstance(internals.cpu_has_bfloat16(), bool)


def test_optimizer_methods_are_unwrapped() -> None:
    for name in ("add_param_group", "load_state_dict", "state_dict", "zero_grad"):
        method = internals.eager_method(getattr(torch.optim.Optimizer, name))
        assert inspect.getsourcefile(method) == inspect.getsourcefile(torch.optim.Optimizer), name
        assert method.__code__.co_name == name


def test_hooks_are_known() -> None:
    for register in (nn.Module.register_forward_hook, nn.Module.register_forward_pre_hook):
        module = nn.Linear(2, 2)
        assert not internals.has_forward_hooks(module)
        handle = register(module, lambda *values: None)
        assert internals.has_forward_hooks(module)
        handle.remove()
        assert not internals.has_forward_hooks(module)


def test_views_are_known() -> None:
    x = torch.zeros(4)
    assert internals.is_view(x[:2])
    assert not internals.is_view(x)


def test_collectives_of_one_rank(tmp_path: Path) -> None:
    ranks = 1
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=ranks)
    try:
        group, x = dist.group.WORLD.group_name, torch.arange(6.0).view(3, 2)
        for operation in ("sum", "max"):
            assert torch.equal(internals.all_reduce(x, operation, group), x)
        assert torch.equal(internals.all_gather_rows(x, ranks, group), x)
        assert torch.equal(internals.reduce_scatter_rows(x, ranks, group), x)
    finally:
        dist.destroy_process_group()


def test_compiler_settings_exist_and_the_compiler_is_imported_late() -> None:
    code = """
from bertree.model import torch_internals as internals
import torch
assert not internals.is_compiler_imported()
internals.prepare_compiler()
assert internals.is_compiler_imported() and torch._inductor.config.fallback_random
import torch._dynamo.config
assert "recompile_limit" in torch._dynamo.config._config
internals.limit_recompilations(17)
assert torch._dynamo.config.recompile_limit == 17
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_private_functions_are_called_in_one_module() -> None:
    """`torch._something` and operators with an underscore appear in `torch_internals` alone."""
    root = Path(bertree.__file__).parent
    for path in root.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path.name == "torch_internals.py" or not re.search(r"\btorch[\w.\s]*\._", text):
            continue
        for node in ast.walk(ast.parse(text)):
            name = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
            private = name.startswith("torch.") and any(part.startswith("_") for part in name.split("."))
            assert not private or "._foreach_" in name, f"{path.relative_to(root)}: {name}"
