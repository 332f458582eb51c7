"""The BiLSTM as a member of the family: what it reads, what stands for a text or a pair, what it costs, its folder."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import bertree
from bertree.batch import Batch
from bertree.errors import UserError
from bertree.inference.load import Model, random_model
from bertree.interop import folder
from bertree.model import cost
from bertree.model.architecture import Architecture, BiLstm, Transformer
from bertree.model.network import Network, build
from bertree.model.presets import preset
from bertree.model.readout import Readout
from tests.support.quick import example_count

WIDTH, E, INNER, VOCABULARY = 8, 6, 5, 40


def point(**axes: object) -> Architecture:
    values = {"body": "bilstm", "width": WIDTH, "embedding_width": E, "ffn_width": INNER, "vocab_size": VOCABULARY}
    return Transformer().with_values(values | {"layers": 1, "init_std": 0.3} | axes)


def samples(heads: dict[str, int] | None = None, readout: Readout | None = None, **axes: object) -> Network:
    torch.manual_seed(0)
    return build(point(**axes), heads or {"sequence": 3}, readout).eval()


def lstm_of(network: Network, layer: int = 0) -> nn.LSTM:
    return network.encoder.stack.layers[layer].lstm


def read_alone(network: Network, ids: list[int], layers: int = 1) -> torch.Tensor:
    """Plain PyTorch on one text, no batch."""
    x = network.encoder.embeddings.tokens.weight[torch.tensor(ids)]
    for layer in range(layers):
        x = lstm_of(network, layer)(x)[0]
    return x


def ends(states: torch.Tensor) -> torch.Tensor:
    return torch.cat([states[-1, : WIDTH // 2], states[0, WIDTH // 2 :]])


def test_the_preset_is_about_a_million_without_its_tokens() -> None:
    a = preset("bilstm").architecture
    counts = cost.parameters(a)
    assert counts.total - a.vocab_size * a.embedding_width == counts.encoder
    for head in ("relu", "compare"):
        turned = a.with_values({"sequence_head": head})
        with torch.device("meta"):
            network = build(turned, {"sequence": 2})
        built = sum(p.numel() for name, p in network.named_parameters() if "tokens" not in name)
        assert built == counts.encoder + cost.classifier_parameters(turned)
        assert abs(built / 0.96e6 - 1) < 0.2


def test_operations_are_those_of_the_gates() -> None:
    a = point(layers=2)
    with torch.device("meta"):
        weights = [p for name, p in build(a).encoder.stack.named_parameters() if "weight" in name]
    assert cost.forward_flops(a, 64) == cost.forward_flops(a, 512) == 2 * sum(w.numel() for w in weights)
    assert cost.training_flops(a, 64) == 3 * cost.forward_flops(a, 64)
    assert cost.costs(a).activation_bytes() > cost.costs(point()).activation_bytes() > 0


@example_count(20)
@given(lengths=st.lists(st.integers(1, 7), min_size=1, max_size=6), layers=st.integers(1, 3), seed=st.integers(0, 99))
def test_a_packed_text_is_read_as_if_alone(lengths: list[int], layers: int, seed: int) -> None:
    network, draw = samples(layers=layers), torch.Generator().manual_seed(seed)
    texts = [torch.randint(0, VOCABULARY, (n,), generator=draw).tolist() for n in lengths]
    batch = Batch.pack(texts)
    states = network(batch)
    alone = [read_alone(network, text, layers) for text in texts]
    assert torch.allclose(states, torch.cat(alone), atol=1e-6)
    expected = torch.stack([ends(state) for state in alone])
    assert torch.allclose(network.sequence_states(states, batch), expected, atol=1e-6)


def test_every_depth_is_given() -> None:
    network, batch = samples(layers=3), Batch.pack([[5, 6, 7], [8]])
    states = list(network.encoder.states(batch))
    assert [state.shape for state in states] == [(4, E), (4, WIDTH), (4, WIDTH), (4, WIDTH)]
    assert torch.equal(states[-1], network(batch))


@pytest.mark.parametrize("marked", [True, False])
def test_a_pair_is_two_texts_read_apart_and_compared(marked: bool) -> None:
    """By segments, or by where the second text begins; beside it a text alone, whose v is 0."""
    first, second, single = [5, 6, 7], [8, 9], [10, 11, 12, 13]
    network = samples(sequence_head="compare")
    if marked:
        batch = Batch.pack(
            [first + second, single, [], second + first], [[0] * 3 + [1] * 2, None, None, [0] * 2 + [1] * 3]
        )
    else:
        batch = Batch.pack([first + second, single, [], second + first], second=[3, 0, 0, 2])
    states = network(batch)
    assert torch.allclose(states[:3], read_alone(network, first), atol=1e-6)
    assert torch.allclose(states[3:5], read_alone(network, second), atol=1e-6)
    u, v, alone = (ends(read_alone(network, text)) for text in (first, second, single))
    nothing = torch.zeros(WIDTH)
    expected = [
        torch.cat([u, v, u * v, (u - v).abs()]),
        torch.cat([alone, nothing, nothing, alone.abs()]),
        torch.zeros(4 * WIDTH),
        torch.cat([v, u, u * v, (u - v).abs()]),
    ]
    assert torch.allclose(network.sequence_states(states, batch), torch.stack(expected), atol=1e-6)
    head = network.heads["sequence"]
    assert (head.dense.weight.shape, head.out.weight.shape) == ((INNER, 4 * WIDTH), (3, INNER))
    by_hand = head.out(torch.relu(head.dense(torch.stack(expected))))
    assert torch.allclose(network.class_logits("sequence", states, batch), by_hand, atol=1e-6)


def test_without_compare_a_pair_is_one_text() -> None:
    network = samples()
    batch = Batch.pack([[5, 6, 7, 8]], [[0, 0, 1, 1]])
    assert torch.allclose(network(batch), read_alone(network, [5, 6, 7, 8]), atol=1e-6)


def test_heads_and_what_is_on_top() -> None:
    batch = Batch.pack([[5, 6, 7], [8, 9]], [[0, 0, 1], None])
    network = samples({"token": 4, "span": 2, "choice": 1}, layers=2)
    states = network(batch)
    shapes = {name: tuple(network.class_logits(name, states, batch).shape) for name in network.heads}
    assert shapes == {"token": (5, 4), "span": (5, 2), "choice": (2, 1)}
    frozen = samples(readout=Readout(frozen=True), sequence_head="compare")
    assert frozen.class_logits("sequence", frozen(batch), batch).shape == (2, 3)
    assert [name for name, p in frozen.named_parameters() if p.requires_grad] == [
        "heads.sequence.out.weight",
        "heads.sequence.out.bias",
    ]
    for name in ("mask", "pair"):
        with pytest.raises(UserError, match=f"head '{name}': a bilstm is not pretrained"):
            samples({name: 2})
    for readout in (Readout(layers="embeddings"), Readout(lstm=4)):
        with pytest.raises(UserError, match=r"top\.layers, top\.lstm.*bilstm"):
            samples(readout=readout)


def test_dropout_is_on_embeddings_and_between_layers() -> None:
    batch = Batch.pack([[5, 6, 7]])
    for layers, embeddings, differs in ((1, 0.0, False), (2, 0.0, True), (1, 0.5, True)):
        network = samples(layers=layers, dropout=0.5).train()
        network.encoder.embeddings.dropout.p = embeddings
        assert torch.equal(network(batch), network(batch)) != differs


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"width": 401}, "width: a bilstm has two equal halves, but 401 is odd"),
        ({"attention": "causal"}, "attention: a bidirectional LSTM sees the whole sequence"),
        ({"sharing": "all"}, "sharing: each layer has its own weights, so with body = bilstm it is none, not all"),
        ({"embedding_projection": True}, "embedding_projection: .* it is false, not true"),
        ({"segments": 2}, "segments: .* it is 0, not 2"),
        ({"pooler": True}, "pooler: "),
        ({"sequence_head": "pooler"}, "relu .single texts. or compare"),
        ({"body": "bilsm"}, "body: unknown value 'bilsm', did you mean 'bilstm'"),
        ({"body": "transformer", "sequence_head": "compare"}, "which only body = bilstm does"),
    ],
)
def test_impossible_points_are_refused_with_the_reason(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(UserError, match=reason) as error:
        preset("bilstm").architecture.with_values(changes)
    assert "\n" not in str(error.value)


def test_what_has_no_meaning_does_no_harm() -> None:
    idle = {"heads": 7, "residual": "pre-norm", "residual_init": "scaled", "activation": "relu", "position_offset": 2,
            "attention_dropout": 0.3, "max_positions": 9}  # fmt: skip
    networks = []
    for axes in ({}, idle):
        torch.manual_seed(0)
        networks.append(build(point(**axes)).eval())
    left, right = networks
    batch = Batch.pack([[5, 6, 7], [8]])
    assert torch.equal(left(batch), right(batch))
    assert cost.parameters(point()) == cost.parameters(point(**idle))
    assert point(**idle).with_values({"residual": "post-norm"}).embedding_norm is False


def test_turning_the_body_brings_what_it_implies() -> None:
    turned = preset("albert-base").architecture.with_values({"body": "bilstm", "layers": 2})
    assert isinstance(turned, BiLstm)
    assert (turned.embedding_width, turned.width, turned.embedding_norm) == (128, 768, False)
    assert turned.sequence_head == "relu"
    assert turned.with_values({"width": 512}).embedding_width == 128
    same = point(width=E)
    assert same.with_values({"width": 2 * E}).embedding_width == E
    back = turned.with_values({"body": "transformer", "heads": 12})
    assert isinstance(back, Transformer)
    assert (back.sharing, back.pooler, back.segments) == ("none", False, 0)
    assert (back.embedding_projection, back.embedding_norm, back.sequence_head) == (True, True, "relu")
    compared = turned.with_values({"sequence_head": "compare"})
    assert compared.with_values({"body": "transformer", "heads": 12}).sequence_head == "relu"


def test_files_hold_a_fixed_value_on_every_axis_that_a_bilstm_lacks() -> None:
    a = point()
    lacking = {name: value for name, value in a.written_axes().items() if not hasattr(a, name)}
    assert lacking == {
        "heads": 1,
        "attention": "full",
        "embedding_projection": False,
        "position_offset": 0,
        "segments": 0,
        "sharing": "none",
        "groups": 1,
        "activation": "gelu",
        "mask_activation": "gelu",
        "residual": "post-norm",
        "residual_init": "plain",
        "pooler": False,
        "attention_dropout": 0.0,
    }
    assert list(a.written_axes()) == list(Transformer().written_axes())
    assert Architecture.from_axes(a.written_axes()) == a


@pytest.mark.parametrize("head", ["relu", "compare"])
def test_a_folder_gives_back_the_same_bytes(head: str, tmp_path: Path) -> None:
    model = random_model(point(sequence_head=head, layers=2), {"sequence": 3})
    model.save(tmp_path / "one")
    again = bertree.load(tmp_path / "one")
    assert again.architecture == model.architecture
    again.save(tmp_path / "two")
    for name in ("model.safetensors", "bertree.toml", "config.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    texts = [[5, 6, 7], [8], [9] * 30]
    for a, b in zip(model.hidden(texts), again.hidden(texts), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(UserError, match="Hugging Face has no such model: its body is bilstm"):
        folder.write(again._contents, tmp_path / "theirs", to="huggingface")
    assert not (tmp_path / "theirs").exists()


@pytest.mark.parametrize(
    ("line", "arguments", "reason"),
    [
        (
            "segments = 0",
            "segments = 2",
            "encoded apart, so with body = bilstm it is 0, not 2",
        ),
        ('sharing = "none"', 'sharing = "all"', "each layer has its own weights"),
        ('residual = "post-norm"', 'residual = "prenorm"', "unknown value 'prenorm'"),
        ("heads = 1", 'heads = "1"', "must be a whole number"),
        ("heads = 1", "heads = 7", ""),  # without effect
        ("heads = 1\n", "", ""),
    ],
)
def test_a_file_with_a_value_on_an_axis_that_a_bilstm_lacks(
    line: str, arguments: str, reason: str, tmp_path: Path
) -> None:
    model = random_model(point(), {"sequence": 3})
    model.save(tmp_path)
    text = (tmp_path / "bertree.toml").read_text()
    assert text.count(f"\n{line}") == 1
    (tmp_path / "bertree.toml").write_text(text.replace(f"\n{line}", f"\n{arguments}"))
    if not reason:
        assert bertree.load(tmp_path).architecture == model.architecture
        return
    with pytest.raises(UserError, match=reason) as error:
        bertree.load(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / 'bertree.toml'}: architecture")
    assert "\n" not in str(error.value)


def test_a_preset_has_no_mlm_head_and_half_precision_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertree.inference.cpu_linear.has_native_bfloat16", lambda: True)  # on any CPU
    model = bertree.load("bilstm")
    assert isinstance(model, Model)
    assert list(model.network.heads) == []
    (full,) = model.hidden([[5, 6, 7]])
    (half,) = model.to(precision="bfloat16").hidden([[5, 6, 7]])
    assert (full.shape, half.dtype) == ((3, 400), torch.bfloat16)
    assert (full - half.float()).abs().max() < 0.05
    with pytest.raises(UserError, match="no MLM head"):
        model.fill_mask("a [MASK]")
