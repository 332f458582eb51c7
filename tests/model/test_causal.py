"""The causal axis: no token sees those after it, and what stands for a sequence is its last token."""

from pathlib import Path

import pytest
import torch

import bertree
from bertree.batch import Batch
from bertree.errors import UserError
from bertree.inference.load import random_model
from bertree.interop.huggingface.config import family_of_architecture
from bertree.model import cost
from bertree.model.architecture import Architecture, Transformer
from bertree.model.network import build
from tests.support.batches import axes_of

SMALL = {"vocab_size": 60, "width": 16, "heads": 2, "layers": 3, "max_positions": 32, "attention": "causal"}


def architecture(**axes: object) -> Architecture:
    return Transformer().with_values(SMALL | axes)


@pytest.mark.parametrize("axes", [{}, {"residual": "pre-norm"}, {"sharing": "all"}])
@pytest.mark.parametrize("training", [False, True])  # attention dropout takes the padded kernel
def test_a_token_does_not_depend_on_what_follows(axes: dict[str, object], training: bool) -> None:
    torch.manual_seed(0)
    network = build(architecture(dropout=0.0, attention_dropout=1e-12, **axes)).train(training)
    text = torch.randint(5, 60, (9,)).tolist()
    whole = network(Batch.pack([[7, 8], text, [9]]))[2:11]
    for length in range(1, 9):
        assert torch.allclose(network(Batch.pack([text[:length]])), whole[:length], atol=1e-5)
        other = text[:length] + [(token + 1) % 60 for token in text[length:]]
        changed = network(Batch.pack([other]))
        assert torch.allclose(changed[:length], whole[:length], atol=1e-5)
        assert (changed[length:] - whole[length:]).abs().amax(-1).min() > 1e-3


@pytest.mark.parametrize(("attention", "seen"), [("causal", {5, 6, 7}), ("full", {5, 6, 7, 8, 9})])
def test_gradients_flow_only_from_the_past(attention: str, seen: set[int]) -> None:
    torch.manual_seed(0)
    network = build(architecture(dropout=0.0, attention_dropout=0.0, attention=attention)).eval()
    batch = Batch.pack([[5, 6, 7, 8, 9], [10, 11]])
    network(batch)[2, 0].backward()  # one number: the sum of a layer norm is constant, and has no gradient
    grad = network.encoder.embeddings.tokens.weight.grad
    assert grad is not None
    assert set(grad.abs().sum(-1).nonzero()[:, 0].tolist()) == seen


@pytest.mark.parametrize("sequence_head", ["pooler", "tanh"])
@pytest.mark.parametrize("head", [{"sequence": 3}, {"choice": 1}, {"pair": 2}])
def test_what_reads_a_sequence_reads_its_last_token(sequence_head: str, head: dict[str, int]) -> None:
    torch.manual_seed(0)
    ((name, _),) = head.items()
    batch, other = Batch.pack([[5, 6, 7], [], [8, 9]]), Batch.pack([[5, 6, 11], [], [8, 9]])
    assert batch.last.tolist() == [2, 2, 4]
    assert Batch.pack([[], [4]]).last.tolist() == [0, 0]
    network = build(architecture(sequence_head=sequence_head, init_std=0.5), head).eval()
    left, right = (network.class_logits(name, network(b), b) for b in (batch, other))
    assert (left[0] - right[0]).abs().max() > 1e-4
    assert torch.allclose(left[2], right[2], atol=1e-5)


def test_the_axis_in_files_and_costs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'causal'"):
        Transformer(attention="casual")
    assert family_of_architecture(architecture()).title == "Bert"  # with is_decoder
    model = random_model(architecture(), {"mask": 0}, seed=1)
    model.save(tmp_path / "m")
    again = bertree.load(tmp_path / "m")
    assert axes_of(again).attention == "causal"
    assert torch.equal(again.hidden([[5, 6, 7]])[0], model.hidden([[5, 6, 7]])[0])
    full, causal = Transformer(), Transformer(attention="causal")
    assert cost.parameters(full) == cost.parameters(causal)
    saved = cost.forward_flops(full, 512) - cost.forward_flops(causal, 512)
    assert saved == 12 * 2 * 2 * 768 * (512 - 513 / 2)
