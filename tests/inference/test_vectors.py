"""Vectors of texts: equal to sentence-transformers', whatever else is in the batch, in folders both can read."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import bertree
from bertree.batch import Batch
from bertree.errors import UserError
from bertree.inference.embedding import embed_blocks
from bertree.inference.load import convert, load, random_model
from bertree.interop.sentence_transformers import MODES
from bertree.model.pooling import Dense, PoolingConfig, SentencePooling
from bertree.model.presets import preset
from bertree.text.tokenizer import Tokenizer
from tests.support.parts import UNKNOWN
from tests.support.shared import suite_has

TEXTS = [
    "A man plays a guitar on the stage.",
    "Rain.",
    "",
    "The committee, which had met behind closed doors for three days, published nothing but a list of those present.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "the cat sat on the mat " * 90,
]
TINY = {"layers": 2, "width": 32, "heads": 2, "ffn_width": 64, "embedding_width": 32}


def peer(folder: Path):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu")


@pytest.fixture
def words(tokenizers: dict[str, Tokenizer]) -> Tokenizer:
    return tokenizers["wordpiece"]


def tiny(words: Tokenizer | None, name: str = "bert-base", vector: PoolingConfig | None = None) -> bertree.Model:
    assert words is not None
    axes = TINY | {"vocab_size": words.size} | ({"embedding_width": 16} if "albert" in name else {})
    model = random_model(preset(name).architecture.with_values(axes), {})
    model.tokenizer = words
    if vector is not None:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            model.network.vector = SentencePooling(32, vector)
    return model


def test_equal_to_sentence_transformers(minilm: Path, loaded_minilm: bertree.Model) -> None:
    with pytest.warns(bertree.errors.BertreeWarning, match="cut to 256"):
        ours = loaded_minilm.embed(TEXTS)
    assert ours.dtype == np.float32
    assert np.abs(ours - peer(minilm).encode(TEXTS)).max() < 1e-5
    assert np.allclose(np.linalg.norm(ours, axis=1), 1, atol=1e-6)


# How states are pooled does not depend on the family: the second one has one kind, and several together.
WRITTEN = [(pooling, "bert-base") for pooling in (*MODES, "cls+max+mean", "mean+cls")]
WRITTEN += [(pooling, "distilbert-base") for pooling in ("mean", "cls+max+mean")]


@pytest.mark.parametrize(
    ("pooling", "name"),
    suite_has(WRITTEN[-4:], WRITTEN),
)
def test_written_here_read_there_and_back(words: Tokenizer, tmp_path: Path, pooling: str, name: str) -> None:
    dense = (Dense(24, "tanh"), Dense(8, "identity", bias=False)) if name == "bert-base" else ()
    model = tiny(words, name, PoolingConfig(pooling, normalize=name != "bert-base", dense=dense))
    model.save(tmp_path / "ours")
    ours = model.embed(TEXTS[:5])
    theirs = peer(tmp_path / "ours")
    assert np.abs(ours - theirs.encode(TEXTS[:5])).max() < 1e-5
    assert np.abs(ours - load(tmp_path / "ours").embed(TEXTS[:5])).max() < 1e-6
    theirs.save(str(tmp_path / "theirs"))
    again = load(tmp_path / "theirs")
    assert again.vector == model.vector
    assert np.abs(ours - again.embed(TEXTS[:5])).max() < 1e-6
    assert again.digest == model.digest == load(tmp_path / "ours").digest


def test_a_pooling_that_sentence_transformers_lacks_is_kept_here_and_refused_there(
    words: Tokenizer, tmp_path: Path
) -> None:
    model = tiny(words, vector=PoolingConfig("mean+min", dense=(Dense(8),)))
    model.save(tmp_path / "ours")
    again = load(tmp_path / "ours")
    assert again.vector == model.vector
    assert np.array_equal(again.embed(TEXTS[:5]), model.embed(TEXTS[:5]))
    with pytest.raises(UserError, match="sentence-transformers has no pooling 'min', only cls, max"):
        convert(tmp_path / "ours", tmp_path / "theirs", to="huggingface")
    assert not (tmp_path / "theirs").exists()


@pytest.mark.parametrize("name", ["albert-base", "roberta-base"])
def test_other_members(words: Tokenizer, tmp_path: Path, name: str) -> None:
    model = tiny(words, name, PoolingConfig("mean", dense=(Dense(4),)))
    if name == "roberta-base":  # this tokenizer pads with 0, which Hugging Face's positions do not allow
        model.tokenizer = None
        model.save(tmp_path / "m")
        assert load(tmp_path / "m").vector == model.vector
        return
    model.save(tmp_path / "m")
    assert np.abs(model.embed(TEXTS[:5]) - peer(tmp_path / "m").encode(TEXTS[:5])).max() < 1e-5


def test_an_unknown_part_is_not_left_out_of_vectors(words: Tokenizer) -> None:
    model = tiny(words)
    model.embed(TEXTS[:2])
    UNKNOWN["gated feed-forward"][0](model.network.encoder)
    wanted = [states.mean(0).numpy() for states in model.hidden(TEXTS[:2])]
    np.testing.assert_allclose(model.embed(TEXTS[:2]), wanted, atol=1e-6)


def test_int8_storage_keeps_the_vector(words: Tokenizer, tmp_path: Path) -> None:
    model = tiny(words, vector=PoolingConfig("mean+max", True, (Dense(8),)))
    model.save(tmp_path / "m", precision="int8")
    again = load(tmp_path / "m")
    assert again.vector == model.vector
    assert np.abs(again.embed(TEXTS[:5]) - model.embed(TEXTS[:5])).max() < 0.05


def test_prompts_both_ways(words: Tokenizer, tmp_path: Path) -> None:
    model = tiny(words, vector=PoolingConfig(prompts=(("query", "ask: "), ("passage", "text: ")), prompt="passage"))
    model.save(tmp_path / "m")
    theirs = peer(tmp_path / "m")
    for kind, name in ((None, None), ("query", "query")):
        vectors = model.embed(TEXTS[:2], prompt=kind)
        assert np.abs(vectors - theirs.encode(TEXTS[:2], prompt_name=name)).max() < 1e-5
    assert load(tmp_path / "m").vector == model.vector
    with pytest.raises(UserError, match=r"prompt 'qeury'.*query"):
        model.embed(["a"], prompt="qeury")


def test_a_vector_does_not_depend_on_its_batch(loaded_minilm: bertree.Model) -> None:
    model = loaded_minilm
    random = np.random.default_rng(0)
    words = ["the", "old", "captain", "went", "down", "to", "a", "harbour", "and", "saw", "ships", "night"]
    texts = [" ".join(random.choice(words, random.integers(1, 60))) for _ in range(40)]
    alone = np.concatenate([model.embed([text]) for text in texts])
    for _ in range(4):
        some = random.permutation(len(texts))[: random.integers(2, len(texts))]
        vectors = model.embed([texts[row] for row in some], batch_tokens=int(random.integers(50, 3000)))
        cosine = np.einsum("nd,nd->n", vectors.astype(np.float64), alone[some].astype(np.float64))
        cosine /= np.linalg.norm(vectors.astype(np.float64), axis=1) * np.linalg.norm(
            alone[some].astype(np.float64), axis=1
        )
        assert cosine.min() >= 0.9999999


def test_pooling_by_hand() -> None:
    batch = Batch.pack([[1, 2, 3], [4], []])
    states = torch.tensor([[1.0, 5.0], [2.0, 4.0], [6.0, 0.0], [7.0, 8.0]])
    expected = {
        "cls": [[1, 5], [7, 8]],
        "mean": [[3, 3], [7, 8]],
        "max": [[6, 5], [7, 8]],
        "min": [[1, 0], [7, 8]],
        "last": [[6, 0], [7, 8]],
        "sqrt": [[9 / 3**0.5, 9 / 3**0.5], [7, 8]],
        "weighted": [[(1 + 4 + 18) / 6, (5 + 8) / 6], [7, 8]],
    }
    for name, wanted in expected.items():
        pooled = SentencePooling(2, PoolingConfig(name))(states, batch)
        assert torch.allclose(pooled[:2], torch.tensor(wanted, dtype=torch.float32)), name
        assert pooled.isfinite().all()


def test_any_number_of_texts(words: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny(words)
    assert model.embed([]).shape == (0, 32)
    assert model.embed("one").shape == (1, 32)
    whole = model.embed(TEXTS[:5] * 7)
    monkeypatch.setattr("bertree.inference.embedding.BLOCK", 4)
    done: list[int] = []
    windows = list(embed_blocks(model, (text for text in TEXTS[:5] * 7), advance=done.append))
    assert (sum(done), len(windows)) == (35, 9)
    assert np.array_equal(np.concatenate(windows), model.embed((text for text in TEXTS[:5] * 7), progress=True))
    assert np.abs(np.concatenate(windows) - whole).max() < 1e-6
    with pytest.raises(UserError, match="texts: item 2: None is not a string"):
        model.embed(["a", None])


def test_similarity(loaded_minilm: bertree.Model) -> None:
    model = loaded_minilm
    similarities = model.similarity(["A man plays a guitar."], ["Somebody makes music.", "The stock market fell."])
    assert similarities.shape == (1, 2)
    assert similarities[0, 0] > similarities[0, 1] + 0.2
    vectors = model.embed(["a", "b"])
    assert np.allclose(model.similarity(vectors, vectors).diagonal(), 1, atol=1e-6)
    with pytest.raises(UserError, match="384 and of 3"):
        model.similarity(vectors, np.ones((1, 3), np.float32))
    with pytest.raises(UserError, match=r"vector 1 .*not finite"):
        model.similarity(vectors, np.array([[0.0] * 384, [np.nan] * 384], np.float32))


@pytest.mark.parametrize(
    ("file", "value", "message"),
    [
        ("modules.json", "[", "modules.json: is not valid JSON"),
        ("modules.json", {}, "must be a list of stages"),
        ("modules.json", [{"type": "x.Transformer", "path": ""}, {"type": "x.CNN", "path": "1"}], "then a Pooling"),
        ("modules.json", [{"type": "x.Transformer", "path": "../.."}], "not the name of a folder"),
        ("modules.json", [{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": ".."}], "not the name"),
        ("modules.json", "[" * 100_000, "modules.json: is not valid JSON"),
        ("1_Pooling/config.json", {"pooling_mode": "median"}, "pooling_mode: must be among"),
        ("1_Pooling/config.json", {"pooling_mode": "mean", "include_prompt": False}, "include_prompt"),
        ("config_sentence_transformers.json", {"prompts": [1]}, "prompts: must"),
        ("config_sentence_transformers.json", {"similarity_fn_name": "angle"}, "similarity"),
    ],
)
def test_strange_folders(words: Tokenizer, tmp_path: Path, file: str, value: object, message: str) -> None:
    tiny(words, vector=PoolingConfig()).save(tmp_path / "m")
    (tmp_path / "m/bertree.toml").unlink()
    (tmp_path / "m" / file).write_text(value if isinstance(value, str) else json.dumps(value))
    with pytest.raises(UserError, match=message):
        load(tmp_path / "m")


def test_another_setting_keeps_the_trained_layers(words: Tokenizer) -> None:
    model = tiny(words, vector=PoolingConfig("mean", dense=(Dense(8),)))
    before = model.embed(TEXTS[:2])
    model.vector = PoolingConfig("mean", normalize=True, dense=(Dense(8),))
    assert np.allclose(model.embed(TEXTS[:2]), before / np.linalg.norm(before, axis=1, keepdims=True), atol=1e-6)
    for wrong in (
        PoolingConfig("mean", dense=(Dense(4),)),
        PoolingConfig("mean+max", dense=(Dense(8),)),
        PoolingConfig("cls", dense=(Dense(8),)),
    ):
        with pytest.raises(UserError, match="trained on"):
            model.vector = wrong


def test_the_digest_follows_what_makes_vectors(words: Tokenizer) -> None:
    model = tiny(words, vector=PoolingConfig())
    first = model.digest
    assert model.digest == first
    model.vector = PoolingConfig(similarity="dot")
    assert model.digest == first, "how vectors are compared does not change them"
    with torch.no_grad():
        next(model.network.encoder.parameters()).mul_(1.5)
    second = model.digest
    assert second != first
    model.vector = PoolingConfig("max")
    assert model.digest not in (first, second)
    third = model.digest
    model.tokenizer = None
    assert model.digest != third


def test_weights_of_inference_mode(words: Tokenizer, tmp_path: Path) -> None:
    tiny(words, vector=PoolingConfig()).save(tmp_path / "m")
    with torch.inference_mode():
        model = load(tmp_path / "m")
    assert np.abs(model.embed(TEXTS[:2]) - load(tmp_path / "m").embed(TEXTS[:2])).max() < 1e-5
    assert model.digest == load(tmp_path / "m").digest


def test_small_letters_where_the_folder_wants_them(minilm: Path, tmp_path: Path) -> None:
    model = tiny(Tokenizer.load(minilm), vector=PoolingConfig())
    assert model.tokenizer is not None
    model.tokenizer.backend.normalizer = None  # as a cased tokenizer
    model.tokenizer.files.clear()
    model.save(tmp_path / "m")
    upper, lower = ["A DOG RUNS."], ["a dog runs."]
    assert np.abs(load(tmp_path / "m").embed(upper) - model.embed(lower)).max() > 1e-3
    settings = tmp_path / "m" / "sentence_bert_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"do_lower_case": True}))
    assert np.abs(load(tmp_path / "m").embed(upper) - model.embed(lower)).max() < 1e-6


def test_encode_refuses_what_would_change_its_result(words: Tokenizer) -> None:
    model = tiny(words, vector=PoolingConfig())
    assert model.encode(TEXTS[:2], batch_size=7, truncate_dim=5).shape == (2, 5)
    with pytest.raises(UserError, match="precision='int8' is not supported"):
        model.encode(TEXTS[:2], precision="int8")
