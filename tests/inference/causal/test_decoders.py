"""One token at a time over a cache gives the logits of the whole sequence, whatever computes it."""

import copy

import pytest
import torch
from torch import Tensor

from bertree.batch import Batch
from bertree.inference.causal.decoders import Decoder, DecoderChoice, ModuleDecoder
from bertree.inference.causal.fast_decoder import DecoderWeights, FastDecoder
from bertree.model.network import Network
from tests.support.language_models import KINDS, network
from tests.support.shared import suite_has

VOCAB = 70
FAST = ("gpt1", "gpt2", "ctrl", "bert-base")  # kinds that need no modules


def draw(*lengths: int) -> list[list[int]]:
    torch.manual_seed(2)
    return [torch.randint(0, VOCAB, (length,)).tolist() for length in lengths]


def next_logits(model: Network, rows: list[list[int]]) -> Tensor:
    """The logits of each row's next token, from the whole row."""
    batch = Batch.pack(rows)
    return model.mask_logits(model(batch), batch.last)


def check(decoder: Decoder, model: Network, prompts: list[list[int]], keep: list[int]) -> None:
    """Continue prompts, drop some lanes and repeat others, and continue those."""
    rows = [list(row) for row in prompts]
    logits = decoder.start(prompts, 40)
    steps = torch.tensor(draw(*[8] * len(prompts)))
    for step in range(8):
        assert torch.allclose(logits, next_logits(model, rows), atol=2e-5)
        if step == 3:
            decoder.keep(keep)
            rows, steps = [list(rows[lane]) for lane in keep], steps[keep]
        ids = steps[:, step]
        for row, token in zip(rows, ids.tolist(), strict=True):
            row.append(token)
        logits = decoder.step(ids)


@pytest.mark.parametrize("lengths", suite_has([[1, 9, 4, 9]], [[5], [5, 5, 5], [1, 9, 4, 9]]))
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_steps_equal_the_whole_sequence(kind: str, lengths: list[int]) -> None:
    model, prompts = network(kind, VOCAB), draw(*lengths)
    keep = [*range(1, len(lengths)), 0, 0] if len(lengths) > 1 else [0]
    for lanes in {1, len(lengths)}:
        decoder = DecoderChoice().choose(model, lanes)()
        assert isinstance(decoder, FastDecoder) == (kind in FAST)
        check(decoder, model, prompts, keep)
    if kind in FAST:
        check(ModuleDecoder(model), model, prompts, keep)


def test_an_encoder_with_a_part_of_its_own_is_computed_by_its_modules() -> None:
    model = network("gpt2", VOCAB)
    assert DecoderWeights.of(model) is not None
    hooked = copy.deepcopy(model)
    hooked.encoder.stack.attention[0].register_forward_hook(lambda *arguments: None)
    assert DecoderWeights.of(hooked) is None
    hooked = copy.deepcopy(model)
    hooked.heads["mask"].register_forward_hook(lambda *arguments: None)
    assert DecoderWeights.of(hooked) is None


def test_prepared_weights_follow_the_network() -> None:
    model, choice = network("gpt2", VOCAB), DecoderChoice()

    @torch.inference_mode()
    def logits() -> Tensor:
        return choice.choose(model, 2)().start(draw(3, 4), 8)

    first = logits()
    assert choice._weights(model, False, False) is choice._weights(model, False, False)
    with torch.no_grad():
        model.encoder.stack.ffn[0].part.up.weight.mul_(2)
    second = logits()
    assert (first - second).abs().max() > 1e-3
    with torch.no_grad():
        assert torch.allclose(second, next_logits(model, draw(3, 4)), atol=2e-5)
    assert copy.deepcopy(choice)._built == (None, None)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_recorded_steps_equal_the_whole_sequence(kind: str) -> None:
    model = network(kind, VOCAB, max_positions=600).cuda()
    prompts = draw(5, 1, 9)
    decoder = DecoderChoice().choose(model, 3)()
    rows = [list(row) for row in prompts]
    logits = decoder.start(prompts, 400)
    for step in range(300):  # beyond the places that are attended to at first
        if step % 50 == 0:
            batch = Batch.pack(rows).to("cuda")
            assert torch.allclose(logits, model.mask_logits(model(batch), batch.last), atol=1e-3)
        if step == 120:
            decoder.keep([2, 0])
            rows, logits = [rows[2], rows[0]], logits[[2, 0]]
        ids = logits.argmax(1)
        for row, token in zip(rows, ids.tolist(), strict=True):
            row.append(token)
        logits = decoder.step(ids)
