"""The two kinds of architecture: what they answer, what files have of them; no other code asks for the kind."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import bertree
from bertree.batch import Batch
from bertree.errors import UserError
from bertree.model.architecture import MEANING, TYPES, Architecture, BiLstm, Transformer
from bertree.model.architecture.base import axis
from bertree.model.layers.basic import without_weights
from bertree.model.network import HEADS, build
from bertree.model.presets import PRESETS, preset
from bertree.model.recurrent import BiLstmEncoder
from bertree.model.transformer import TransformerEncoder

SOURCE = Path(bertree.__file__).parent
SMALL = {"vocab_size": 40, "width": 8, "embedding_width": 6, "ffn_width": 5, "layers": 2}
KINDS = {
    "transformer": Transformer().with_values(SMALL | {"heads": 2}),
    "bilstm": Transformer().with_values(SMALL | {"body": "bilstm"}),
}


def test_what_a_transformer_answers() -> None:
    a = preset("roberta-base").architecture
    assert isinstance(a, Transformer)
    assert (a.pretrainable, a.has_attention, a.layers_readable, a.replayable) == (True,) * 4
    assert (a.head_names, a.default_heads) == (HEADS, {"mask": 0})
    assert (a.causal, a.reads_segments, a.sequence_width) == (False, False, 768)
    assert preset("bert-base").architecture.reads_segments
    assert a.with_values({"attention": "causal"}).causal
    assert a.describe() == "transformer, 12 layers, width 768, 12 heads"
    assert preset("albert-large").architecture.short == "L24 H1024 A16 E128"
    rates = {width: Transformer(heads=1).with_values({"width": width}).learning_rate for width in (1024, 512, 128)}
    assert rates == {1024: 2e-5, 512: 1e-4, 128: 2e-4}


def test_what_a_bilstm_answers() -> None:
    a = preset("bilstm").architecture
    assert isinstance(a, BiLstm)
    assert (a.pretrainable, a.has_attention, a.layers_readable, a.replayable) == (False,) * 4
    assert (a.head_names, a.default_heads) == (("sequence", "token", "span", "beam-span", "choice"), {})
    assert (a.causal, a.reads_segments, a.learning_rate) == (False, False, 1e-3)
    assert (a.sequence_width, a.with_values({"sequence_head": "compare"}).sequence_width) == (400, 1600)
    assert (a.describe(), a.short) == ("bilstm, 1 layer, width 400", "L1 H400 LSTM E300")


@pytest.mark.parametrize(("head", "pairs", "expected"), [
    ("sequence", True, "compare"), ("choice", True, "compare"), ("token", True, "relu"), ("sequence", False, "relu"),
])  # fmt: skip
def test_a_bilstm_compares_pairs_unless_the_head_reads_tokens(head: str, pairs: bool, expected: str) -> None:
    assert KINDS["bilstm"].for_task(head, pairs, reads_states=False).sequence_head == expected


def test_a_transformer_has_a_pooler_if_the_head_reads_one() -> None:
    bare = Transformer(pooler=False)
    roberta = preset("roberta-base").architecture.with_values({"pooler": False})
    for a, head, reads_states, expected in (
        (bare, "sequence", False, True),
        (bare, "sequence", True, False),
        (bare, "token", False, False),
        (roberta, "sequence", False, False),
        (roberta, "choice", False, True),
    ):
        changed = a.for_task(head, pairs=True, reads_states=reads_states)
        assert isinstance(changed, Transformer)
        assert changed.pooler is expected


@pytest.mark.parametrize("name", PRESETS)
def test_files_give_back_every_preset(name: str) -> None:
    a = preset(name).architecture
    assert Architecture.from_axes(a.written_axes()) == a


def test_every_axis_has_a_meaning_and_a_type() -> None:
    for a in KINDS.values():
        assert set(a.axes()) <= set(MEANING)
        assert all(type(value) is TYPES[name] for name, value in a.axes().items())
    assert list(MEANING) == list(TYPES)


def test_files_have_an_axis_that_came_later_only_where_it_is_not_the_default() -> None:
    @dataclass(frozen=True)
    class Later(Transformer):
        later: int = axis(3, "an axis that older files do not have")

    assert Later().written_axes() == Transformer().written_axes()
    assert list(Later(later=4).written_axes().items()) == [*Transformer().written_axes().items(), ("later", 4)]
    assert (Later().axes()["later"], Later(later=4).differences(Later())) == (3, {"later": (3, 4)})


@pytest.mark.parametrize("kind", KINDS)
def test_an_encoder_is_used_by_its_protocol(kind: str) -> None:
    a, batch = KINDS[kind], Batch.pack([[5, 6, 7], [8]])
    encoder = build(a).eval().encoder
    assert type(encoder) is {"transformer": TransformerEncoder, "bilstm": BiLstmEncoder}[kind]
    assert (encoder.width, encoder.depth) == (a.width, a.layers)
    hidden, state = encoder.encode(batch)
    states = list(encoder.states(batch))
    assert state is None
    assert len(states) == encoder.depth + 1
    assert torch.equal(hidden, encoder(batch))
    assert torch.equal(hidden, states[-1])
    assert encoder.sequence_states(hidden, batch).shape == (2, a.sequence_width)
    if kind == "bilstm":
        with pytest.raises(NotImplementedError, match="BiLstmEncoder has no pooler"):
            encoder.pool(hidden, batch)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(UserError, match="body: unknown value 'bilsm', did you mean 'bilstm'"):
        Architecture.from_axes({"body": "bilsm"})


def test_no_code_asks_for_the_kind_by_its_name() -> None:
    asked = re.compile(r"\.body\s*(==|!=|in\b|not in\b)|\bin \([^)]*\.body")
    lines = [f"{path}: {line}" for path in SOURCE.rglob("*.py") for line in path.read_text().splitlines()
             if asked.search(line)]  # fmt: skip
    assert not lines


@pytest.mark.parametrize("kind", KINDS)
def test_without_weights_nothing_is_drawn(kind: str) -> None:
    full = build(KINDS[kind], {"sequence": 2}).state_dict()
    state = torch.get_rng_state()
    with without_weights():
        empty = build(KINDS[kind], {"sequence": 2}).state_dict()
        other = torch.empty(2, device="cpu").fill_(3.0)
    assert {name: tensor.shape for name, tensor in empty.items()} == {name: t.shape for name, t in full.items()}
    assert all(tensor.is_meta for tensor in empty.values())
    assert torch.equal(torch.get_rng_state(), state)
    assert other.tolist() == [3.0, 3.0]
