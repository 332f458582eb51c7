"""Reformer: same weights, same input, same rotations, same numbers as transformers.

Out of training transformers takes any length, and pads it to whole chunks; texts are given to it one at a time, since
the padding of a batch moves its chunks. Its backward pass needs the training mode, in which a row is as long as its
axial positions. Where a chunk is its own neighbour, transformers counts it twice: no test has such a length.
"""

from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor

from bertree.interop.contents import Contents
from tests.support.parity import batch_of, gradients, ragged, round_trip
from tests.support.reformer_parity import load_exact, reformer, use_rotations_of_transformers
from tests.support.shared import suite_has

pytestmark = pytest.mark.filterwarnings("ignore:.*lm_head.bias")
HIDDEN, GRADIENT = 1e-5, 1e-4
LENGTHS = [32, 1, 7, 4, 12, 3, 19, 8, 31]
WHOLE = [32, 29, 30]  # of 32 places: only the last chunk has padding
HEADS = {
    "Model": "",
    "ModelWithLMHead": "mask",
    "ForMaskedLM": "mask",
    "ForSequenceClassification": "sequence",
    "ForQuestionAnswering": "span",
}
POINTS: dict[str, dict[str, object]] = {
    "mixed": {},
    "local only": {"attn_layers": ["local", "local"]},
    "lsh only": {"attn_layers": ["lsh", "lsh", "lsh"]},
    "one round": {"num_hashes": 1},
    "four rounds": {"num_hashes": 4, "num_buckets": 8},
    "factors": {"num_buckets": [2, 4]},
    "chunks of two lengths": {"local_attn_chunk_length": 2, "lsh_attn_chunk_length": 8},
    "learned positions": {"axial_pos_embds": False},
    "feed-forward in chunks": {"chunk_size_feed_forward": 4},
    "gelu, wide heads": {"hidden_act": "gelu", "attention_head_size": 12, "layer_norm_eps": 1e-6},
    "no neighbours": {"lsh_num_chunks_before": 0, "local_num_chunks_before": 0},
}
AFTER = {"lsh_num_chunks_after": 1, "local_num_chunks_after": 1}


@pytest.fixture(autouse=True)
def same_rotations(monkeypatch: pytest.MonkeyPatch) -> None:
    use_rotations_of_transformers(monkeypatch)


def lengths_for(point: dict[str, object]) -> list[int]:
    """Lengths of which no chunk is its own neighbour, and which transformers pads as it must for each attention."""
    if "local_attn_chunk_length" in point:
        return [32, 8, 16, 24, 2]
    if "local_num_chunks_after" in point:
        return [n for n in LENGTHS if n <= 4 or n > 8]
    return [n for n in LENGTHS if "chunk_size_feed_forward" not in point or n >= 4]


def states(model: transformers.PreTrainedModel, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    encoder = getattr(model, "reformer", model)
    out = encoder(input_ids=ids, attention_mask=mask, use_cache=False)
    return out.last_hidden_state


@pytest.mark.parametrize("causal", suite_has([False], [True, False]))
@pytest.mark.parametrize("name", [*POINTS, "chunks after"])
def test_states_of_any_length_equal_transformers(name: str, causal: bool, tmp_path: Path) -> None:
    if name == "chunks after" and causal:
        pytest.skip("transformers has no such model")
    point = AFTER if name == "chunks after" else POINTS[name]
    model = reformer("Model", 1, **point, is_decoder=causal)
    contents = load_exact(model, tmp_path)
    ids, kinds = ragged(lengths_for(point), contents.architecture.vocab_size, 0, 1)
    with torch.no_grad():
        ours = contents.network(batch_of(ids, kinds))
        theirs = torch.cat([states(model, torch.tensor([row]))[0] for row in ids])
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() < HIDDEN


def padded(ids: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Rows of 32 tokens and which of them are real."""
    rows = torch.tensor([row + [0] * (WHOLE[0] - len(row)) for row in ids])
    return rows, torch.tensor([[1] * len(row) + [0] * (WHOLE[0] - len(row)) for row in ids])


def scored(model: transformers.PreTrainedModel, kind: str, arguments: tuple[Tensor, Tensor]) -> Tensor:
    """What transformers gives for the real tokens, or for the texts."""
    hidden, real = states(model, *arguments), arguments[1].bool()
    if kind == "sequence":
        return model.classifier(hidden)
    head = {"mask": "lm_head", "span": "qa_outputs"}.get(kind)
    return (getattr(model, head)(hidden) if head else hidden)[real]


def own_scores(contents: Contents, kind: str, ids: list[list[int]]) -> Tensor:
    network, batch = contents.network, batch_of(ids, [[0] * len(row) for row in ids])
    hidden = network(batch)
    if kind == "mask":
        return network.mask_logits(hidden, torch.arange(len(hidden)))
    return network.class_logits(kind, hidden, batch) if kind else hidden


def compare(model: transformers.PreTrainedModel, contents: Contents, kind: str, seed: int) -> None:
    """Compare logits and gradients in training mode: activations of transformers are computed again from outputs."""
    ids, _ = ragged(WHOLE, contents.architecture.vocab_size, 0, seed)
    model.train()
    contents.network.train()
    ours, theirs = own_scores(contents, kind, ids), scored(model, kind, padded(ids))
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() < HIDDEN
    weight = torch.randn(ours.shape, generator=torch.Generator().manual_seed(seed)) / ours.numel() ** 0.5
    (ours * weight).sum().backward()
    (theirs * weight).sum().backward()
    assert gradients(contents.network, contents, model) < GRADIENT


@pytest.mark.parametrize("name", suite_has(list(POINTS)[::3], POINTS))
def test_gradients_equal_transformers(name: str, tmp_path: Path) -> None:
    model = reformer("ModelWithLMHead", 2, **POINTS[name])
    compare(model, load_exact(model, tmp_path), "mask", 2)


@pytest.mark.parametrize("suffix", HEADS)
@pytest.mark.parametrize("seed", suite_has([0], range(2)))
def test_logits_and_gradients_of_every_head_equal_transformers(suffix: str, seed: int, tmp_path: Path) -> None:
    model = reformer(suffix, seed, **AFTER if suffix != "ModelWithLMHead" else {})
    compare(model, load_exact(model, tmp_path), HEADS[suffix], seed)


@pytest.mark.parametrize("suffix", ["ModelWithLMHead", "ForMaskedLM"])
def test_losses_equal_transformers(suffix: str, tmp_path: Path) -> None:
    model = reformer(suffix, 5)
    contents = load_exact(model, tmp_path)
    (ids,), _ = ragged([WHOLE[0]], contents.architecture.vocab_size, 0, 5)
    hidden = contents.network(batch_of([ids], [[0] * len(ids)]))
    tokens, chosen = torch.tensor(ids), torch.tensor([0, 3, 4, 17, 31])
    if suffix == "ForMaskedLM":
        labels = torch.full_like(tokens, -100).index_copy(0, chosen, tokens[chosen])
        ours = contents.network.mask_loss(hidden, chosen, tokens[chosen]) / len(chosen)
    else:
        labels = tokens
        ours = contents.network.mask_loss(hidden, torch.arange(len(ids) - 1), tokens[1:]) / (len(ids) - 1)
    theirs = model(input_ids=tokens[None], labels=labels[None]).loss
    assert ours.item() == pytest.approx(theirs.item(), rel=HIDDEN)


@pytest.mark.parametrize("suffix", HEADS)
@pytest.mark.parametrize("name", suite_has(["mixed"], ["mixed", "learned positions", "factors"]))
def test_what_is_read_and_written_is_the_same_for_transformers(suffix: str, name: str, tmp_path: Path) -> None:
    model = reformer(suffix, 0, **POINTS[name])
    contents = round_trip(model, tmp_path)
    again = type(model).from_pretrained(tmp_path / "ours").eval()
    assert list(contents.network.heads) == ([HEADS[suffix]] if HEADS[suffix] else [])
    assert again.config.architectures == [type(model).__name__]
    row, _ = ragged([19], contents.architecture.vocab_size, 0, 0)
    with torch.no_grad():
        before, after = (states(network, torch.tensor(row)) for network in (model, again))
    assert torch.equal(before, after)
    if HEADS[suffix] == "mask":
        assert torch.equal(again.lm_head.bias, model.lm_head.bias)


@pytest.mark.parametrize("length", [8, 16, 20, 32])
def test_buckets_that_follow_from_the_length_equal_transformers(length: int, tmp_path: Path) -> None:
    model = reformer("Model", 4, num_buckets=None)
    contents = load_exact(model, tmp_path)
    ids, kinds = ragged([length], contents.architecture.vocab_size, 0, 4)
    with torch.no_grad():
        ours, theirs = contents.network(batch_of(ids, kinds)), states(model, torch.tensor(ids))[0]
    assert (ours - theirs).abs().max() < HIDDEN
