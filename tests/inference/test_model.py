"""What a person does in Python: load, look at hidden states, fill masks, save; with real weights and wrong input."""

import random
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import bertree
from bertree.errors import BertreeWarning, UserError
from bertree.inference.inputs import BATCH_TOKENS
from tests.support.parity import peer

WORDS = "the of capital river Paris naïve ÇA quantum 3.14 don't e-mail © → x² Straße İstanbul 北京 東京 한국어"
RIGHT_TO_LEFT = "שלום עולם مرحبا بالعالم هذا نص עברית"
OTHERS = "привет мир नमस्ते दुनिया สวัสดี ελληνικά 🙂 👩‍👩‍👧 🇫🇷 🏳️‍🌈"


def varied(count: int) -> list[str]:
    """Texts of all kinds: empty, very long, emoji, right to left, control characters, odd white space."""
    draw = random.Random(0)
    texts = [
        "",
        " ",
        "\t\n",
        "[MASK] [SEP]",
        "a" * 5000,
        "word " * 3000,
        "🙂" * 600,
        "\u200f" + "שלום " * 400,
        "\x00\x07 bell",
    ]
    pools = [p.split() for p in (WORDS, RIGHT_TO_LEFT, OTHERS, f"{WORDS} {RIGHT_TO_LEFT} {OTHERS}")]
    while len(texts) < count:
        texts.append(" ".join(draw.choices(draw.choice(pools), k=draw.choice([1, 3, 8, 20, 60]))))
    return texts


def mean_vectors(hidden: list[torch.Tensor]) -> np.ndarray:
    return torch.nn.functional.normalize(torch.stack([h.mean(0) for h in hidden]), dim=-1).numpy()


def test_sentence_vectors_equal_sentence_transformers_on_real_weights(
    minilm: Path, loaded_minilm: bertree.Model
) -> None:
    from sentence_transformers import SentenceTransformer  # 2 s, which only the process that runs this test pays

    texts = varied(30)
    model = loaded_minilm
    with pytest.warns(BertreeWarning, match="texts cut to 256 tokens"):
        ours = mean_vectors(model.hidden(texts))
    theirs = SentenceTransformer(str(minilm), device="cpu").encode(texts)
    assert np.abs(ours - theirs).max() < 1e-5


def test_a_text_does_not_depend_on_its_neighbours_or_its_place(loaded_minilm: bertree.Model) -> None:
    model = loaded_minilm
    texts = [t for t in varied(40) if len(t) < 400]
    alone = [model.hidden([text])[0] for text in texts]
    order = random.Random(1).sample(range(len(texts)), len(texts))
    together = dict(zip(order, model.hidden([texts[i] for i in order]), strict=True))
    for i, hidden in enumerate(alone):
        assert (hidden - together[i]).abs().max() < 1e-5


def test_batches_are_cut_by_tokens(loaded_minilm: bertree.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    model = loaded_minilm
    texts = ["one two three", "four", "five six seven eight nine ten"] * 5
    whole = model.hidden(texts)
    monkeypatch.setitem(BATCH_TOKENS, "cpu", 7)
    for left, right in zip(whole, model.hidden(texts), strict=True):
        assert (left - right).abs().max() < 1e-5


def test_threads_are_used_and_left_as_they_were(loaded_minilm: bertree.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BATCH_TOKENS, "cpu", 64)
    model, texts, counts = loaded_minilm, ["a text of some length"] * 40, []  # several batches
    for threads in (2, 1):  # one afterwards, as before the test
        torch.set_num_threads(threads)
        counts.append(model.hidden(texts))
        assert torch.get_num_threads() == threads
    assert all((left - right).abs().max() < 1e-5 for left, right in zip(*counts, strict=True))
    assert not counts[0][0].requires_grad


def test_ids_pairs_and_odd_shapes(loaded_minilm: bertree.Model) -> None:
    model = loaded_minilm
    assert model.hidden([]) == []
    assert model.hidden([[]])[0].shape == (0, 384)
    assert [h.shape[0] for h in model.hidden([[101, 102], (101, 7592, 102), torch.tensor([101])])] == [2, 3, 1]
    single = model.hidden("hello")
    assert torch.equal(single, model.hidden([[101, 7592, 102]])[0])
    (pair,) = model.hidden([("hello", "world")])
    assert pair.shape[0] == 5
    assert not torch.allclose(pair, model.hidden([[101, 7592, 102, 2088, 102]])[0])  # the second is segment 1
    assert model.hidden(["\ud800 lone surrogate"])[0].shape[1] == 384


@pytest.mark.parametrize("wrong", [[[30522]], [[-1]], [[5, None]], [[2**80]]])
def test_wrong_ids_are_said(wrong: list[list[int]], loaded_minilm: bertree.Model) -> None:
    with pytest.raises(UserError, match="from 0 to 30521"):
        loaded_minilm.hidden(wrong)


@pytest.mark.parametrize("wrong", [[["x"]], [[1.5]], [torch.ones(3)], [1, "a"], [None], [b"abc"], [("a", "b", "c")]])
def test_wrong_inputs_are_said(wrong: list[object], loaded_minilm: bertree.Model) -> None:
    with pytest.raises(UserError, match="must be a text, a pair of texts or a list of token ids"):
        loaded_minilm.hidden(wrong)


def test_any_iterable_will_do_and_lengths_have_limits(loaded_minilm: bertree.Model) -> None:
    model = loaded_minilm
    assert len(model.hidden(text for text in ("a", "b"))) == 2
    for wrong in (0, 513):
        with pytest.raises(UserError, match="must lie between 1 and 512"):
            model.hidden(["a"], max_length=wrong)


def test_too_many_ids_are_refused_not_cut(loaded_minilm: bertree.Model) -> None:
    with pytest.raises(UserError, match="513 ids is longer than the 512 positions"):
        loaded_minilm.hidden([[5] * 513])


def test_a_folder_without_tokenizer_takes_ids_alone(minilm: Path, loaded_minilm: bertree.Model, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(minilm / name)
    model = bertree.load(tmp_path)
    assert model.tokenizer is None
    assert torch.equal(model.hidden([[101, 7592, 102]])[0], loaded_minilm.hidden([[101, 7592, 102]])[0])
    with pytest.raises(UserError, match="no tokenizer, so it takes lists of token ids"):
        model.hidden(["text"])


def test_save_and_load_keep_everything(minilm: Path, tmp_path: Path) -> None:
    model = bertree.load(minilm)
    model.save(tmp_path / "m")
    again = bertree.load(tmp_path / "m")
    assert again.max_length == model.max_length == 256
    assert torch.equal(again.hidden(["a text"])[0], model.hidden(["a text"])[0])
    for name in ("tokenizer.json", "vocab.txt", "tokenizer_config.json"):
        assert (tmp_path / "m" / name).read_bytes() == (minilm / name).read_bytes()


def test_half_precision_stays_close(
    minilm: Path, loaded_minilm: bertree.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertree.inference.cpu_linear.has_native_bfloat16", lambda: True)  # on any CPU
    exact = mean_vectors(loaded_minilm.hidden(["The cat sat.", "A longer text about rivers and the sea."]))
    half = bertree.load(minilm, precision="bfloat16").hidden(
        ["The cat sat.", "A longer text about rivers and the sea."]
    )
    assert half[0].dtype == torch.bfloat16
    assert ((exact * mean_vectors([h.float() for h in half])).sum(1) > 0.999).all()


def test_fill_mask_equals_transformers(minilm: Path, small_folder: Path) -> None:
    import transformers

    model = bertree.load(small_folder)
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(small_folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(small_folder)
    text = "The capital of France is [MASK]."
    inputs = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        expected = theirs(**inputs).logits[0, (inputs["input_ids"][0] == 103).nonzero()[0, 0]].softmax(-1).topk(7)
    candidates = model.fill_mask(text, 7)
    assert [c.id for c in candidates] == expected.indices.tolist()
    assert np.allclose([c.probability for c in candidates], expected.values, atol=1e-6)
    assert model.fill_mask("The capital of France is <mask>.", 7) == candidates
    two = model.fill_mask("[MASK] and [MASK]", 2)
    assert [len(mask) for mask in two] == [2, 2]
    assert len(model.fill_mask(text, 10**6)) == 30522


def test_what_cannot_be_filled_is_said(loaded_minilm: bertree.Model, small_folder: Path) -> None:
    model = bertree.load(small_folder)
    for text, reason in (("no mask here", "the text has no mask"), ("<mask> " + "long " * 600 + "[MASK]", "cut off")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(UserError, match=reason):
                model.fill_mask(text)
    with pytest.raises(UserError, match="no MLM head"):
        loaded_minilm.fill_mask("[MASK]")
    with pytest.raises(UserError, match="no tokenizer with a mask"):
        bertree.load("bert-tiny").fill_mask("[MASK]")


def test_presets_are_the_same_for_the_same_seed() -> None:
    state = torch.get_rng_state()
    first, same, other = bertree.load("bert-tiny"), bertree.load("bert-tiny"), bertree.load("bert-tiny", seed=1)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(first.hidden([[5, 6]])[0], same.hidden([[5, 6]])[0])
    assert not torch.equal(first.hidden([[5, 6]])[0], other.hidden([[5, 6]])[0])


def test_names_that_are_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'default'"):
        bertree.load("defualt")
    with pytest.raises(UserError, match="no such folder"):
        bertree.load(tmp_path / "nothing")
    with pytest.raises(UserError, match="precision 'float31': must be float32, bfloat16, float16 or int8"):
        bertree.load("bert-tiny", precision="float31")
    with pytest.raises(UserError, match="device 'warp'"):
        bertree.load("bert-tiny", device="warp")


def test_trained_masked_model_of_another_family(tmp_path: Path) -> None:
    """A byte-level BPE vocabulary and a RoBERTa: positions start at the offset, <mask> is its mask."""
    import json

    vocab = {t: i for i, t in enumerate(["<s>", "<pad>", "</s>", "<unk>", "<mask>", *"abcdefgh", "Ġ", "ab", "Ġab"])}
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    model = peer(
        "roberta", "ForMaskedLM", 0, vocab_size=len(vocab), max_position_embeddings=22, type_vocab_size=1, **shape
    )
    model.save_pretrained(tmp_path)
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\nĠ ab\n")
    loaded = bertree.load(tmp_path)
    assert loaded.tokenizer is not None
    assert loaded.tokenizer.encode(["ab ab"])[0].ids == [0, vocab["ab"], vocab["Ġab"], 2]
    assert loaded.max_length == 20
    assert len(loaded.fill_mask("ab [MASK]", 3)) == 3


def test_import_is_light() -> None:
    code = "import sys; import bertree; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
