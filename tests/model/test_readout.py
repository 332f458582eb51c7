"""What stands between encoder and heads: which states are read, how, and that a frozen encoder stays as it is."""

import pytest
import torch

from bertree.batch import Batch
from bertree.config.sections import OptimSettings
from bertree.config.settings import read
from bertree.errors import UserError
from bertree.model.architecture import Transformer
from bertree.model.network import Network, build
from bertree.model.readout import DEPTHS, Readout
from bertree.train.optimizer import build_optimizer
from tests.support.shared import suite_has

SMALL = {"vocab_size": 60, "width": 16, "heads": 2, "layers": 5, "max_positions": 32, "init_std": 0.3}
HEADS = {"sequence": 3, "token": 4, "span": 2, "choice": 1}
READOUTS = [
    *(Readout(layers=name) for name in DEPTHS),
    *(Readout(layers=name, lstm=7, lstm_layers=1, frozen=True) for name in DEPTHS),
    Readout(lstm=5),
    Readout(frozen=True),
    Readout(crf=True),
    Readout("concat-last-four", 6, 2, True, True),
]


def network(readout: Readout, **axes: object) -> Network:
    torch.manual_seed(0)
    return build(Transformer().with_values(SMALL | axes), HEADS, readout).eval()


def logits(model: Network, batch: Batch) -> dict[str, torch.Tensor]:
    read = model(batch)
    return {name: model.class_logits(name, read, batch) for name in HEADS}


@pytest.mark.parametrize("readout", READOUTS, ids=str)
@pytest.mark.parametrize("attention", suite_has(["full"], ["full", "causal"]))
def test_what_else_is_in_the_batch_does_not_matter(readout: Readout, attention: str) -> None:
    model = network(readout, attention=attention)
    texts = [[5, 6, 7, 8], [9], [10, 11, 12]]
    together = logits(model, Batch.pack([texts[0], [], *texts[1:]]))
    for row, text in zip((0, 2, 3), texts, strict=True):
        alone = logits(model, Batch.pack([text]))
        for name in ("sequence", "choice"):
            assert torch.allclose(together[name][row], alone[name][0], atol=1e-5)
    alone = torch.cat([logits(model, Batch.pack([text]))["token"] for text in texts])
    assert torch.allclose(together["token"], alone, atol=1e-5)


@pytest.mark.parametrize("residual", ["post-norm", "pre-norm"])
def test_the_states_that_are_read(residual: str) -> None:
    batch = Batch.pack([[5, 6, 7], [8, 9]])
    for name in DEPTHS:
        model = network(Readout(layers=name), residual=residual)
        states = list(model.encoder.states(batch))
        expected = {
            "last": model.encoder(batch),
            "embeddings": model.encoder.embeddings(batch),
            "second-to-last": states[4],
            "sum-last-four": torch.stack(states[2:]).mean(0),  # equal weights before anything is learned
            "concat-last-four": torch.cat(states[2:], -1),
            "sum-all": torch.stack(states[1:]).mean(0),
        }[name]
        assert torch.allclose(model(batch), expected, atol=1e-5), name


def test_a_weighted_sum_is_learned_weights_and_scale() -> None:
    model, batch = network(Readout(layers="sum-last-four")), Batch.pack([[5, 6, 7]])
    model.features.join.weights.data = torch.tensor([0.0, 1.0, 2.0, -1.0])
    model.features.join.scale.data.fill_(1.5)
    shares = model.features.join.weights.softmax(0)
    states = list(model.encoder.states(batch))[2:]
    expected = 1.5 * sum(share * state for share, state in zip(shares, states, strict=True))
    assert torch.allclose(model(batch), expected, atol=1e-6)
    model(batch).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.features.parameters())


def test_layers_above_what_is_read_are_not_computed() -> None:
    model, calls = network(Readout(layers="second-to-last")), []
    for block in model.encoder.stack.ffn:
        block.register_forward_hook(lambda *_: calls.append(1))
    model(Batch.pack([[5, 6]]))
    assert len(calls) == 4


@pytest.mark.parametrize("attention", ["full", "causal"])
@pytest.mark.parametrize("lstm", [0, 5])
def test_a_sequence_is_read_where_it_has_been_seen(attention: str, lstm: int) -> None:
    model, batch = network(Readout("second-to-last", lstm), attention=attention), Batch.pack([[5, 6, 7], [8, 9]])
    read = model(batch)
    place = [2, 4] if attention == "causal" else [0, 3]
    expected = torch.cat([read[[2, 4], :lstm], read[[0, 3], lstm:]], -1) if lstm else read[place]
    assert torch.equal(model.sequence_states(read, batch), expected)
    head = model.heads["sequence"]
    assert torch.equal(model.class_logits("sequence", read, batch), head.out(expected))
    assert head.dense is None


@pytest.mark.parametrize("readout", [t for t in READOUTS if t.frozen], ids=str)
def test_a_frozen_encoder_stays_as_it_is(readout: Readout) -> None:
    model = network(readout).train()
    assert model.training
    assert not model.encoder.training
    assert model.heads.training
    before = {name: value.clone() for name, value in model.state_dict().items()}
    mover = build_optimizer(model, OptimSettings(lr=0.1))
    batch = Batch.pack([[5, 6, 7], [8, 9]])
    sum(x.square().sum() for x in logits(model, batch).values()).backward()
    assert all(parameter.grad is None for parameter in model.encoder.parameters())
    mover.step()
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    expected = {f"heads.{name}" for name, _ in model.heads.named_parameters()}
    expected |= {f"features.{name}" for name, _ in model.features.named_parameters()} if model.features else set()
    assert moved == expected
    assert not model.eval().train(False).training


def test_names_in_a_checkpoint() -> None:
    model = network(Readout("sum-last-four", 6, 1, True, True))
    assert {name for name in model.state_dict() if not name.startswith(("encoder.", "heads."))} == {
        *("features.join.weights", "features.join.scale", "crf.start", "crf.end", "crf.transitions"),
        *(f"features.lstm.lstm.{kind}_l0{way}" for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
          for way in ("", "_reverse")),
    }  # fmt: skip
    assert not [name for name in network(Readout()).state_dict() if not name.startswith(("encoder.", "heads."))]


@pytest.mark.train
def test_a_crf_learns_what_may_follow() -> None:
    none = dict.fromkeys(("dropout", "attention_dropout", "classifier_dropout"), 0.0)
    model = network(Readout(crf=True), vocab_size=50, **none).train()
    batch = Batch.pack([[5, 6, 7, 8], [9, 10]])
    chosen, width = torch.tensor([1, 2, 3, 5]), 3
    cells, answers = torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 2, 1])
    mover = build_optimizer(model, OptimSettings(lr=3e-2))
    losses = []
    for _ in range(60):
        scores = model.class_logits("token", model(batch), batch, chosen)
        loss = model.crf.loss(scores, cells, width, answers)
        losses.append(loss.item())
        loss.backward()
        mover.step()
        mover.zero_grad()
    assert losses[-1] < 0.2 * losses[0]
    model.eval()
    scores = model.class_logits("token", model(batch), batch, chosen)
    assert torch.equal(model.crf.decode(scores, cells, width), answers)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"layers": "sum-last-for"}, "did you mean 'sum-last-four'"),
        ({"lstm": -1}, "top.lstm: must lie between"),
        ({"lstm": 2**40}, "top.lstm: must lie between"),
        ({"lstm_layers": 0}, "top.lstm_layers"),
        ({"frozen": 1}, "top.frozen: must be true or false"),
        ({"lstm": True}, "top.lstm: must be a whole number"),
        ({"freeze": True}, "top.freeze: unknown key, did you mean 'frozen'"),
    ],
)
def test_what_cannot_be_is_refused(values: dict[str, object], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        read(Readout, values, "file", "top")


def test_what_does_not_fit_is_refused() -> None:
    a = Transformer().with_values(SMALL | {"layers": 3})
    with pytest.raises(UserError, match="concat-last-four needs 4 layers, but the encoder has 3"):
        build(a, HEADS, Readout("concat-last-four"))
    with pytest.raises(UserError, match="second-to-last needs 2 layers"):
        build(a.with_values({"layers": 1}), HEADS, Readout("second-to-last"))
    with pytest.raises(UserError, match="head 'mask': reads an encoder's last states"):
        build(a, {"mask": 0}, Readout(lstm=3))
    with pytest.raises(UserError, match="needs a 'token' head"):
        build(a, {"sequence": 2}, Readout(crf=True))
    assert build(a, {"mask": 0, "pair": 0}, Readout(frozen=True)).crf is None
