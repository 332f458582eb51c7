"""What `bertree.layers` measures equals plain numpy over all tokens; attention and lens are those of transformers."""

import base64
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import bertree
from bertree.cli.main import app
from bertree.errors import UserError
from bertree.inference.layer_sums import ModelSums, analyze, lens_tokens
from tests.inference.test_inspection import small_model
from tests.support import learnable

WORDS = ("the", "boat", "river", "tree", "in", "old", "red")
TEXTS = [" ".join(WORDS[(n * k) % 7] for k in range(1, 4 + n % 9)) for n in range(1, 17)]
LENS = {"mask": 0}


def plain_cka(left: np.ndarray, right: np.ndarray) -> float:
    a, b = left - left.mean(0), right - right.mean(0)
    return float(np.linalg.norm(a.T @ b) ** 2 / (np.linalg.norm(a.T @ a) * np.linalg.norm(b.T @ b)))


def plain_states(model: bertree.Model, texts: list[str] = TEXTS) -> list[np.ndarray]:
    """All tokens of all texts in each layer."""
    return list(torch.cat(model.hidden(texts, "all"), 1).double().numpy())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("bert-base", {}),
        ("albert-base", {"embedding_width": 8}),
        ("gpt2", {}),
        ("bert-base", {"attention": "local", "window": 2}),
    ],
)
def test_measures_equal_plain_numpy(name: str, axes: dict[str, object]) -> None:
    model = small_model(name, LENS, init_std=0.4, **axes)
    layers = model.layers(iter(TEXTS), batch_tokens=40)
    states = plain_states(model)
    assert (layers.texts, layers.tokens) == (len(TEXTS), len(states[0]))
    near: Any = lambda value: pytest.approx(value, abs=1e-5)  # noqa: E731
    norms = [np.linalg.norm(state, axis=1) for state in states]
    units = [state / norm[:, None] for state, norm in zip(states, norms, strict=True)]
    assert layers.norms == near([norm.mean() for norm in norms])
    for layer, (before, after) in enumerate(pairwise(states)):
        assert layers.distance[layer] == near(np.linalg.norm(after - before, axis=1).mean())
        assert layers.cosine[layer] == near((units[layer] * units[layer + 1]).sum(1).mean())
    for layer, unit in enumerate(units):
        cosines = unit @ unit.T
        assert layers.anisotropy[layer] == near(cosines[~np.eye(len(unit), dtype=bool)].mean())
    assert layers.cka == near(np.array([[plain_cka(a, b) for b in states] for a in states]))
    check_attention_and_lens(model, layers)


def check_attention_and_lens(model: bertree.Model, report: Any) -> None:
    tokenizer = model.required_tokenizer
    special = [tokenizer.id_of("cls"), tokenizer.id_of("sep"), tokenizer.end_id]
    shares, entropies, scores = [], [], []
    for text in TEXTS:
        weights = model.attentions(text).double().numpy()
        is_special = np.isin(tokenizer.encode(text), [token for token in special if token is not None])
        shares.append(np.stack([weights[..., is_special].sum(-1), np.einsum("lnii->lni", weights)]))
        entropies.append(-np.where(weights > 0, weights * np.log(np.maximum(weights, 1e-300)), 0).sum(-1))
        states = model.hidden(text, "all")[:, lens_tokens(len(is_special))]
        if norm := model.network.encoder.norm:
            states = torch.stack([*norm(states[:-1]), states[-1]])
        with torch.no_grad():
            logits = [model.network.mask_logits(state, torch.arange(len(state))) for state in states]
        scores.append(torch.stack(logits)[..., : tokenizer.size].double().log_softmax(-1).numpy())
    lens = np.concatenate(scores, 1)
    special_share, diagonal = np.concatenate(shares, -1).mean(-1)
    assert report.special == pytest.approx(special_share, abs=1e-5)
    assert report.diagonal == pytest.approx(diagonal, abs=1e-5)
    assert report.entropy == pytest.approx(np.concatenate(entropies, -1).mean(-1), abs=1e-5)
    assert report.agreement == pytest.approx((lens.argmax(-1) == lens[-1].argmax(-1)).mean(1), abs=1e-5)
    assert report.lens_entropy == pytest.approx(-(np.exp(lens) * lens).sum(-1).mean(1), abs=1e-5)


def test_two_models_are_compared_over_tokens_or_over_texts() -> None:
    first, second = (
        small_model(name, {}, init_std=0.4, layers=layers) for name, layers in (("bert-base", 3), ("albert-base", 2))
    )
    both = analyze([first, second], TEXTS, batch_tokens=40)
    sides = [plain_states(model) for model in (first, second)]
    assert both.over == "tokens"
    assert both.cka == pytest.approx(np.array([[plain_cka(a, b) for b in sides[1]] for a in sides[0]]), abs=1e-5)
    assert both.models[1].cka == pytest.approx(second.layers(TEXTS).cka, abs=1e-5)
    second = bertree.load("bert-tiny", tokenizer=Path(bertree.__file__).parent / "default")
    apart = analyze([first, second], TEXTS, max_length=48)
    assert apart.over == "texts"
    means = [np.stack([x.double().mean(1).numpy() for x in m.hidden(TEXTS, "all")], 1) for m in (first, second)]
    assert apart.cka == pytest.approx(np.array([[plain_cka(a, b) for b in means[1]] for a in means[0]]), abs=1e-5)


def test_memory_does_not_grow_with_the_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    measures = ModelSums.measures

    def sized(self: ModelSums, *args: Any) -> Any:
        parts = [x for sums in (self._states, self._products, self._attention) for x in vars(sums).values()]
        sizes.append(
            sum(x.numel() for part in parts if isinstance(part, list) for x in part if isinstance(x, torch.Tensor))
        )
        return measures(self, *args)

    monkeypatch.setattr(ModelSums, "measures", sized)
    model = small_model("bert-base", {})
    for texts in (TEXTS[:2], TEXTS * 17):
        model.layers(texts)
    assert sizes[0] == sizes[1] > 0


def test_what_a_model_does_not_have_is_left_out() -> None:
    with pytest.warns(bertree.BertreeWarning, match="has no attention; shares and entropies of heads are left out"):
        layers = small_model("bilstm", {"token": 3}, heads=1).layers(TEXTS[:4])
    assert layers.special is layers.agreement is None
    assert len(layers.norms) == len(layers.distance) + 1
    assert json.loads(json.dumps(layers.as_json()))["entropy"] is None


def test_attention_and_lens_of_the_page_are_those_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = learnable.tokenizer()
    shape = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
    config = transformers.BertConfig(vocab_size=tokenizer.size, initializer_range=0.3, **shape)
    theirs = transformers.BertForMaskedLM._from_config(config, attn_implementation="eager").eval()
    theirs.save_pretrained(tmp_path / "bert")
    tokenizer.save(tmp_path / "bert")
    (tmp_path / "texts.txt").write_text("\n".join(["", *TEXTS]))
    with pytest.warns(bertree.BertreeWarning, match="1 of 17 rows are empty and were left out"):
        bertree.layers(tmp_path / "bert", texts=tmp_path / "texts.txt", out=tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    block = re.search(r'<script type="application/json" id="examples">(.*?)</script>', page)
    assert block is not None
    examples = json.loads(block[1])
    assert [example["text"] for example in examples] == TEXTS[:3]
    for example in examples:
        ids = torch.tensor([tokenizer.encode(example["text"])])
        with torch.no_grad():
            outputs = theirs(ids, output_attentions=True, output_hidden_states=True)
            lens = [theirs.cls(state)[0].softmax(-1).max(-1) for state in outputs.hidden_states]
        (shown,) = example["models"]
        for layer, weights in zip(shown["attention"], outputs.attentions, strict=True):
            decoded = np.frombuffer(base64.b64decode(layer), "<u2").reshape(weights[0].shape) / 65535
            assert decoded == pytest.approx(weights[0].numpy(), abs=1e-5)
        for layer, best in zip(shown["lens"], lens, strict=True):
            assert [token[0]["probability"] for token in layer] == pytest.approx(best.values.tolist(), abs=1e-5)
            assert [tokenizer.backend.token_to_id(token[0]["text"]) for token in layer] == best.indices.tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{empty}", "--texts", "{texts}"], "so it is not a model folder"),
        (["default", "--texts", "{one}"], "CKA compares how states differ between texts, so it needs at least two"),
        (["default", "--texts", "nothing.txt"], "nothing.txt"),
        (
            ["bert-tiny", "--texts", "{texts}"],
            "bert-tiny: has no tokenizer to read texts with; give --tokenizer FOLDER",
        ),
        (
            ["default", "--texts", "{texts}", "--out", "page.pdf"],
            "page.pdf: is written as a page; give a file with the ending",
        ),
        (
            ["default", "--texts", "{texts}", "--text", "body"],
            "is plain text, one text per line, and has no column 'body'",
        ),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str, tmp_path: Path) -> None:
    places = {"empty": tmp_path / "empty", "texts": tmp_path / "texts.txt", "one": tmp_path / "one.txt"}
    places["empty"].mkdir()
    places["texts"].write_text("\n".join(TEXTS))
    places["one"].write_text(TEXTS[0] + "\n")
    result = CliRunner().invoke(app, ["layers", *(argument.format(**places) for argument in arguments)])
    assert isinstance(result.exception, UserError)
    assert message in str(result.exception).replace("\n", " ")
    assert "\n" not in str(result.exception)


def test_the_verb_prints_a_row_for_each_layer(tmp_path: Path) -> None:
    small_model("bert-base", LENS).save(tmp_path / "one")
    (tmp_path / "texts.jsonl").write_text("\n".join(json.dumps({"body": text}) for text in TEXTS))
    command = ["layers", str(tmp_path / "one"), str(tmp_path / "one"), "--texts", str(tmp_path / "texts.jsonl")]
    printed = CliRunner().invoke(app, [*command, "--text", "body"], catch_exceptions=False).output
    assert [line.split()[0] for line in printed.splitlines() if line[:5].strip().isdigit()] == list("01230123")
    assert "CKA of one (1) with one (2) over tokens: 1.000 of the last layers" in printed
    values = json.loads(CliRunner().invoke(app, [*command, "--text", "body", "--json"]).stdout)
    assert np.shape(values["cka"]) == (4, 4)
    assert values["models"][0]["texts"] == len(TEXTS)
