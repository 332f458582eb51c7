"""What every layer makes of a text: attention, the logit lens, lengths of the states."""

import pytest
import torch

import bertree
from bertree.errors import UserError
from bertree.inference.load import make_model
from bertree.interop.contents import Contents
from bertree.model.network import build
from bertree.model.presets import preset
from tests.support.language_models import language_model, words

TEXT = "the boat in the [MASK] river"
SMALL = {"layers": 3, "width": 16, "heads": 2, "ffn_width": 24, "max_positions": 64}


def small_model(name: str, output: dict[str, int], **axes: object) -> bertree.Model:
    tokenizer = words()
    a = preset(name).architecture.with_values(SMALL | {"vocab_size": tokenizer.size} | axes)
    torch.manual_seed(0)
    return make_model(Contents(a, build(a, output), tokenizer))


@pytest.mark.parametrize(("name", "axes"), [("bert-base", {}), ("albert-base", {"embedding_width": 8}), ("gpt2", {})])
def test_the_last_layer_of_the_lens_is_what_the_model_predicts(name: str, axes: dict[str, object]) -> None:
    model = small_model(name, {"mask": 0}, **axes)
    inspection = model.inspect(TEXT, k=2)
    assert inspection.tokens == model.tokens(TEXT)
    tokens = len(inspection.tokens)
    assert inspection.norms.shape == (4, tokens)
    torch.testing.assert_close(inspection.attention, model.attentions(TEXT))
    assert inspection.lens is not None
    assert [len(layer) for layer in inspection.lens] == [tokens] * 4
    with torch.no_grad():
        logits = model.network.mask_logits(model.hidden([TEXT])[0], torch.arange(tokens))
    likeliest = logits[:, : words().size].softmax(-1).topk(2)
    assert [[c.id for c in token] for token in inspection.lens[-1]] == likeliest.indices.tolist()
    assert inspection.lens[-1][2][0].probability == pytest.approx(float(likeliest.values[2, 0]), abs=1e-6)
    if not model.architecture.causal:
        at_mask = inspection.lens[-1][inspection.tokens.index("[MASK]")]
        assert [c.id for c in at_mask] == [c.id for c in model.fill_masks(TEXT, 2)[0].candidates]
    assert inspection.lens[0] != inspection.lens[-1]


def test_states_of_pre_norm_layers_are_normed_before_the_lens_reads_them() -> None:
    model = small_model("gpt2", {"mask": 0})
    inspection = model.inspect(TEXT, k=1)
    assert inspection.lens is not None
    state = model.network.encoder.norm(model.hidden([TEXT], layers=1)[0])
    with torch.no_grad():
        logits = model.network.mask_logits(state, torch.arange(len(state)))
    assert [token[0].id for token in inspection.lens[1]] == logits[:, : words().size].argmax(1).tolist()


def test_what_a_model_does_not_have_is_none() -> None:
    assert small_model("bert-base", {}).inspect(TEXT).lens is None
    relative = language_model("transformer-xl-base").inspect(TEXT)
    assert relative.attention is None, "scores by distance are not computed again"
    assert relative.lens is not None
    lstm = small_model("bilstm", {"token": 3}, heads=1).inspect(TEXT)
    assert lstm.attention is None
    assert lstm.lens is None
    assert len(lstm.norms) == 4


def test_a_pair_and_a_long_text() -> None:
    model = small_model("bert-base", {"mask": 0})
    assert model.inspect(("the boat", "a river")).tokens == model.tokens(("the boat", "a river"))
    long = model.inspect("boat " * 30, max_length=10)
    assert (len(long.tokens), long.dropped) == (10, 22)
    with pytest.raises(UserError, match="k: must be at least 1"):
        model.inspect(TEXT, k=0)
