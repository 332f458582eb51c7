"""LSTM language models: the kernel against plain autograd, directions, characters."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from bertree.batch import Batch
from bertree.errors import UserError
from bertree.inference.load import random_model
from bertree.inference.model import Model
from bertree.model.architecture import Lstm, Transformer
from bertree.model.kernels.lstm import LstmWeights, lstm
from bertree.model.layers.embeddings import CharacterCnn
from bertree.model.presets import preset
from bertree.text.cleaning import SpelledWord, spell_vocabulary

WORDS = ["<S>", "</S>", "<UNK>", "a", "word", "another", "Straße"]


def plain_lstm(
    x_dtw: Tensor, weights: LstmWeights, sizes: Sequence[int], cell_clip: float, projection_clip: float
) -> Tensor:
    """The formulas, one direction and one step after the other."""
    outs = []
    for x_tw, inputs, recurrent, bias, projection in zip(x_dtw, *weights, strict=True):
        h, c, steps = x_tw.new_zeros(sizes[0], len(projection)), x_tw.new_zeros(sizes[0], projection.shape[1]), []
        for x_nw in x_tw.split(list(sizes)):
            count = len(x_nw)
            gates = x_nw @ inputs.T + bias + h[:count] @ recurrent.T
            into, forget, candidate, out = gates.chunk(4, -1)
            c = (forget.sigmoid() * c[:count] + into.sigmoid() * candidate.tanh()).clamp(-cell_clip, cell_clip)
            h = ((out.sigmoid() * c.tanh()) @ projection.T).clamp(-projection_clip, projection_clip)
            steps.append(h)
        outs.append(torch.cat(steps))
    return torch.stack(outs)


@pytest.mark.parametrize("clips", [(0.0, 0.0), (0.4, 0.15)])
def test_the_kernel_and_its_gradients_equal_the_formulas(clips: tuple[float, float]) -> None:
    torch.manual_seed(0)
    sizes = [3, 3, 2, 1]
    shapes = ((2, 9, 4), (2, 20, 4), (2, 20, 3), (2, 20), (2, 3, 5))
    tensors = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    sent = torch.randn(2, 9, 3, dtype=torch.float64)
    results = []
    for compute, (cell, projection) in ((lstm, clips), (plain_lstm, tuple(clip or 1e9 for clip in clips))):
        out = compute(tensors[0], LstmWeights(*tensors[1:]), sizes, cell, projection)
        results.append([out, *torch.autograd.grad((out * sent).sum(), tensors)])
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)
    assert not clips[0] or float(results[0][0].detach().abs().max()) == clips[1]


def tiny(**axes: object) -> Lstm:
    small = {"vocab_size": len(WORDS), "width": 8, "ffn_width": 8, "filters": "1:4,3:4", "cutoffs": ""}
    a = preset("elmo-tiny").architecture.with_values(small | axes)
    assert isinstance(a, Lstm)
    return a


def spelled_model(a: Lstm) -> Model:
    model = random_model(a, {"mask": 0})
    for module in model.network.modules():
        if isinstance(module, CharacterCnn):
            module.spell(torch.from_numpy(spell_vocabulary(WORDS, 0, 1, a.characters)))
    return model


@pytest.mark.parametrize("direction", ["both", "forward", "backward"])
def test_each_direction_sees_only_its_side_and_no_other_text(direction: str) -> None:
    encoder = spelled_model(tiny(direction=direction)).network.encoder
    with torch.no_grad():
        alone = encoder(Batch.pack([[0, 3, 4, 5, 1]]))
        packed = encoder(Batch.pack([[4], [0, 3, 4, 5, 1], [5, 5]]))[1:6]
        changed = encoder(Batch.pack([[0, 3, 6, 5, 1]]))
    torch.testing.assert_close(alone, packed, rtol=1e-5, atol=1e-6)
    same = (alone == changed).all(-1)
    halves = [(alone == changed)[:, :8].all(-1).tolist(), (alone == changed)[:, -8:].all(-1).tolist()]
    left, right = [True, True, False, False, False], [False, False, False, True, True]
    if direction == "both":
        assert halves == [left, right]
    else:
        assert same.tolist() == (left if direction == "forward" else right)


def test_a_word_outside_the_vocabulary_is_read_like_one_inside() -> None:
    model = spelled_model(tiny())
    with torch.no_grad():
        inside = model.network(Batch.pack([[0, 6, 4, 6, 1]]))
        word = SpelledWord(2, "Straße", 50)
        batch = Batch.pack([[0, word, 4, word, 1]])
        assert batch.ids.tolist() == [0, 2, 4, 2, 1]
        assert batch.spelled is not None
        assert len(batch.spelled.characters) == 1
        torch.testing.assert_close(model.network(batch), inside)
        long = Batch.pack([[0, SpelledWord(2, "x" * 10_000, 50), SpelledWord(2, "", 50), 1]])
        assert model.network(long).isfinite().all()


def test_padding_of_words_is_computed_as_far_as_it_differs() -> None:
    cnn = spelled_model(tiny()).network.encoder.embeddings.tokens
    assert isinstance(cnn, CharacterCnn)
    characters = torch.from_numpy(spell_vocabulary(["ab", "c" * 20], None, None, 50)).long()
    with torch.no_grad():
        both, short = cnn.vectors(characters), cnn.vectors(characters[:1])
        torch.testing.assert_close(both[:1], short)


def test_what_has_no_meaning_is_refused() -> None:
    a = tiny()
    for axes, message in (
        ({"embedding_width": 9}, "an lstm's is its width, 8"),
        ({"characters": 2}, "less than the longest filter"),
        ({"filters": "3"}, "length:number"),
        ({"heads": 0}, "heads"),
        ({"pooler": True}, "so with body = lstm it is false"),
    ):
        with pytest.raises(UserError, match=message):
            a.with_values(axes)
    with pytest.raises(UserError, match="a transformer has no such axis; only body = lstm has"):
        Transformer().with_values({"characters": 50})
    with pytest.raises(UserError, match="needs its tokenizer"):
        random_model(a, {}).network(Batch.pack([[0, 1]]))
    back = a.with_values({"body": "transformer", "heads": 4})
    assert isinstance(back, Transformer)
    assert not a.with_values({"vocab_size": 900}).axes()["cutoffs"]
