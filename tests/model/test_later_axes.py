"""Axes that architectures did not always have: what they build, cost and refuse, and that files leave defaults out."""

from pathlib import Path

import pytest
import torch

import bertree
from bertree.batch import Batch
from bertree.errors import UserError
from bertree.inference.load import random_model
from bertree.interop.huggingface.config import family_of_architecture
from bertree.model import cost
from bertree.model.architecture import Transformer, later_axes
from bertree.model.layers.positions import RotaryPositions
from bertree.model.masks import Full, SlidingWindow
from bertree.model.network import build
from tests.support.later_axes import EVERYTHING, LATER
from tests.support.shared import suite_has

SMALL = {"vocab_size": 60, "width": 32, "heads": 4, "layers": 4, "max_positions": 40, "attention_dropout": 0.0}
POINTS = {name: axes for name, (axes, _) in LATER.items()} | {
    "everything": EVERYTHING,
    "output matrix of its own": {"tied_output": False},
    "reversible": {
        "residual": "reversible",
        "positions": "axial",
        "axial_shape": "5,8",
        "ffn_chunk": 5,
        "mask_transform": False,
        "tied_output": False,
    },
}
XL = {"positions": "relative"}
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def architecture(**axes: object) -> Transformer:
    changed = Transformer().with_values(SMALL | axes)
    assert isinstance(changed, Transformer)
    return changed


@pytest.mark.parametrize("point", POINTS)
def test_parameters_are_counted_as_built(point: str) -> None:
    a = architecture(**POINTS[point])
    network = build(a, {"mask": 0})
    counts = cost.parameters(a)

    def count(*modules: torch.nn.Module | None) -> int:
        return sum(p.numel() for module in modules if module is not None for p in module.parameters())

    encoder = network.encoder
    assert counts.embeddings == count(encoder.embeddings)
    assert counts.encoder == count(encoder.stack, encoder.norm)
    assert counts.mlm_head == count(network.heads)
    names = [name for name, _ in encoder.named_parameters()]
    assert len(names) == len(set(names))
    if point not in ("local attention", "chunked attention", "everything"):
        assert counts != cost.parameters(architecture())


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("training", suite_has([True], [False, True]))
def test_a_text_does_not_depend_on_those_beside_it(point: str, training: bool) -> None:
    torch.manual_seed(0)
    network = build(architecture(dropout=0.0, **POINTS[point]), {"mask": 0}).train(training)
    texts = [torch.randint(5, 60, (n,)).tolist() for n in (9, 1, 17, 9, 30)]
    packed = Batch.pack(texts)
    network(packed).square().sum().backward()
    # A shift of all keys changes no score: with layer norms, some gradients are 0 but for rounding. None is missing.
    assert all(p.grad is not None for name, p in network.encoder.named_parameters() if "pooler" not in name)
    for alone, together in zip(texts, packed.split(network(packed)), strict=True):
        assert (network(Batch.pack([alone])) - together).abs().max() < 1e-5


@pytest.mark.train
@pytest.mark.parametrize("point", suite_has(("everything", "reversible", "output matrix of its own"), POINTS))
def test_it_learns_and_is_read_back_from_its_folder(point: str, tmp_path: Path) -> None:
    model = random_model(architecture(dropout=0.0, **POINTS[point]), {"mask": 0}, seed=1)
    network, optimizer = model.network.train(), torch.optim.Adam(model.network.parameters(), 1e-2)
    batch, losses = Batch.pack([[7, 8, 9, 10, 11], [12, 13, 14, 15]]), []
    for _ in range(12):
        loss = torch.nn.functional.cross_entropy(
            network.mask_logits(network(batch), torch.arange(9)), batch.ids.roll(1)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 2
    network.eval()
    model.save(tmp_path / "m")
    again = bertree.load(tmp_path / "m")
    assert again.architecture == model.architecture
    assert torch.equal(again.hidden([[5, 6, 7]])[0], model.hidden([[5, 6, 7]])[0])


def test_defaults_are_not_written() -> None:
    plain = architecture()
    assert not set(later_axes(plain)) & set(plain.written_axes())
    assert {name for name, (axes, _) in LATER.items() if not set(axes) & set(later_axes(plain))} == set()
    changed = architecture(**EVERYTHING)
    assert set(changed.written_axes()) - set(plain.written_axes()) == set(EVERYTHING) & set(later_axes(plain))
    assert Transformer.from_axes(changed.written_axes()) == changed


def test_layers_in_turn() -> None:
    stack = build(architecture(**EVERYTHING)).encoder.stack
    parts = [block.part for block in stack.attention]
    near, far = SlidingWindow(3, 3), Full()
    assert [part.mask for part in parts] == [far, near, near, far]
    assert [part.positions.base for part in parts] == [160_000.0, 10_000.0, 10_000.0, 160_000.0]
    assert len({id(part.positions) for part in parts}) == 2
    assert all(isinstance(part.positions, RotaryPositions) for part in parts)
    causal = architecture(attention="causal,causal")
    assert causal.causal
    assert build(causal).encoder.causal
    assert not architecture(attention="causal,local").causal
    shared = architecture(attention="full,local", sharing="all", groups=4)
    assert shared.sharing_indices("attention") == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("axes", "reason"),
    [
        ({"attention": "full,locale"}, "attention: unknown value 'locale', did you mean 'local'"),
        ({"attention": ""}, "attention: unknown value ''"),
        ({"window": 0}, "window: must be at least 1"),
        ({"attention": "full,local", "sharing": "all"}, r"sharing: layers with different attention \(full,local\)"),
        ({"positions": "rotary", "position_offset": 2}, "position_offset: rotary positions have no table"),
        ({"positions": "rotary", "width": 36}, "heads: rotary positions need heads of an even width, not 9"),
        ({"positions": "rotory"}, "did you mean 'rotary'"),
        ({"rotary_base": 0.0}, "rotary_base: must be above 0"),
        ({"ffn": "gate"}, "did you mean 'gated'"),
        ({"norm": "rns"}, "did you mean 'rms'"),
        ({"body": "bilstm", "norm": "rms"}, "norm: only a transformer has it"),
        ({"query_stream": True}, "query_stream: needs positions = relative, not learned"),
        (XL | {"query_stream": True, "attention": "causal"}, "query_stream: needs attention = full, not causal"),
        ({"segment_encoding": "relative"}, "segment_encoding: relative needs positions = relative, not learned"),
        (XL | {"segment_encoding": "relative", "attention": "full,local"}, "relative needs attention = full"),
        (XL | {"segment_encoding": "relative", "segments": 1}, "segments: there must be 2 or more"),
        (XL | {"memory": 4, "attention": "local"}, "memory: needs attention = causal or full, not local"),
        (XL | {"memory": 4, "same_length": True}, "same_length: needs attention = causal, not full"),
        ({"summary": "middle"}, "summary: unknown value 'middle'"),
        ({"first_norm": False}, "first_norm: only a pre-norm or reversible model"),
        ({"first_norm": False, "residual": "pre-norm", "sharing": "all"}, "first_norm: only a pre-norm"),
        ({"body": "bilstm", "query_stream": True}, "query_stream: only a transformer has it"),
    ],
)
def test_impossible_points_are_refused_with_the_reason(axes: dict[str, object], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        Transformer().with_values(SMALL | axes)


@pytest.mark.parametrize("point", LATER)
def test_hugging_faces_families_do_not_hold_them(point: str) -> None:
    axes, _ = LATER[point]
    (axis, value), *_ = axes.items()
    # What has rotary positions is compared with ModernBERT, which differs from BERT in more.
    named = "sequence_head is pooler" if value == "rotary" else f"{axis} is {value}"
    with pytest.raises(UserError, match=f"Bert cannot hold this architecture: {named}, there it is"):
        family_of_architecture(architecture(**axes))


def test_operations_count_what_local_attention_sees() -> None:
    for length in (1, 2, 5, 6, 40):
        mask, places = SlidingWindow(5, 5), torch.arange(length)
        a = architecture(attention="local", window=5)
        others = cost.forward_flops(architecture(), length) - 4 * 4 * 32 * length
        seen = int(mask.sees(places, places).sum())
        assert cost.forward_flops(a, length) - others == round(4 * 4 * 32 * seen / length)
    gated = cost.forward_flops(architecture(ffn="gated"), 8) - cost.forward_flops(architecture(), 8)
    assert gated == 2 * 4 * 32 * 128


def kept_bytes(a: Transformer) -> int:
    """Bytes of the distinct tensors that autograd keeps for a batch of 64 tokens."""
    network, kept = build(a), {}
    weights = {p.untyped_storage().data_ptr() for p in network.parameters()}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if tensor.is_floating_point() and storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = network(Batch.pack([[1] * 16] * 4))
    assert out.requires_grad
    return sum(size for size, _ in kept.values())


@pytest.mark.parametrize(("axes", "once"), [({"ffn": "gated"}, 0), ({"positions": "rotary"}, 4 * 8)])
def test_kept_activations_are_what_the_memory_model_says(axes: dict[str, object], once: int) -> None:
    """The model is for half precision; `once` are bytes that are in float32 there too."""
    plain, changed = architecture(dropout=0.0, pooler=False), architecture(dropout=0.0, pooler=False, **axes)
    predicted = cost.costs(changed).activation_bytes() - cost.costs(plain).activation_bytes()
    assert kept_bytes(changed) - kept_bytes(plain) == 64 * (2 * (predicted - once) + once)


@cuda
@pytest.mark.parametrize("compiled", [False, True])
def test_half_precision_is_close_to_fp32_on_cuda(compiled: bool) -> None:
    torch.manual_seed(0)
    a = architecture(**EVERYTHING | {"width": 128, "heads": 2, "window": 16, "max_positions": 512})
    network = build(a).cuda().eval()
    run = torch.compile(network.encoder, fullgraph=True, dynamic=True) if compiled else network.encoder
    for sizes in ([40, 3, 17], [300, 9, 100]):
        batch = Batch.pack([torch.randint(1, 60, (n,)).tolist() for n in sizes]).to("cuda")
        with torch.no_grad():
            exact = network(batch)
            with torch.autocast("cuda", torch.bfloat16):
                assert (run(batch).float() - exact).abs().max() < 0.1
