"""The samples that cases start from: tiny, and the same for every session.

They are made by commands in children (see `running`), so that this process never computes.
"""

import io
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

from bertree.interop import folder
from bertree.interop.contents import Contents
from bertree.model.architecture import Transformer
from bertree.model.network import build
from bertree.model.pooling import Dense, PoolingConfig
from tests.fuzz.case import copy
from tests.fuzz.running import Runner
from tests.support import learnable, left_to_right

RECIPE = """
extends = "bert-base"
note = "a tiny one"
[model]
preset = "bert-base"
layers = 1
width = 16
heads = 2
max_positions = 32
dropout = 0.1
[data]
held_out_share = 0.1
masking = "token"
[schedule]
warmup = 2
[run]
device = "cpu"
micro_tokens = 256
log_every = 1
eval_every = 4
eval_tokens = 128
save_every = 2
[[phases]]
steps = 4
max_length = 16
batch_tokens = 128
[[phases]]
steps = 4
max_length = 32
batch_tokens = 128
"""
# Of a model that remembers: its memory is in the checkpoints.
XL_RECIPE = (
    RECIPE.replace("bert-base", "transformer-xl-base")
    .replace("max_positions = 32", 'ffn_width = 32\nmemory = 20\ncutoffs = "20,60"')
    .replace('masking = "token"\n', "")
)
TUNE = ("device=cpu", "epochs=2", "batch=8", "lr=1e-3", "max_length=24")
LEARNED_NOTHING = "has learned nothing"  # in so few steps; the exit code is 1
STOP_AT = 5  # steps after which the samples of stopped runs were stopped
PRETRAIN = ("pretrain", "recipe.toml", "--store", "store", "--out", "run", "--resume")
FINETUNE = ("finetune", "bertree", "--task", "classification", "--data", "data/train.csv", "--out", "tuning")
FINETUNE += (*TUNE, "evaluations=4", "--resume")


def make(runner: Runner) -> None:
    """Make all samples."""
    root = runner.samples
    root.mkdir()
    _call(runner, root, lambda: _models(root))
    (root / "recipe.toml").write_text(RECIPE)
    (root / "recipe-xl.toml").write_text(XL_RECIPE)
    for command in _COMMANDS:
        result = runner.command(command, root)
        assert result.code == 0, f"{' '.join(command)}: {result.err}"
    _call(runner, root, lambda: _more_tokenizers(root))
    _stopped(runner, PRETRAIN, "run", {"recipe.toml": "recipe.toml", "store": "store"}, "run")
    _stopped(runner, PRETRAIN, "run", {"recipe.toml": "recipe-xl.toml", "store": "store"}, "run-xl")
    _stopped(runner, FINETUNE, "tuning", {"bertree": "bertree", "data": "data"}, "tuning")


def _call(runner: Runner, root: Path, function: Callable[[], None]) -> None:
    result = runner.call(function, root)
    assert result.code == 0, result.err


_COMMANDS: list[list[str]] = [
    ["convert", "bertree", "hf", "--to", "huggingface"],
    ["convert", "bertree", "int8", "--to", "bertree", "--precision", "int8"],
    ["convert", "vectors", "sentences", "--to", "huggingface"],
    ["prepare", "texts.txt", "--tokenizer", "bertree", "--out", "store", "--workers", "1"],
    ["index", "build", "bertree", "documents.jsonl", "--out", "index", "--kind", "flat"],
    ["index", "build", "bertree", "documents.jsonl", "--out", "index-hnsw", "--kind", "hnsw"],
    ["embed", "bertree", "lines.txt", "--out", "vectors.npy"],
]
_HEADS: dict[str, tuple[dict[str, int], list[str], dict[str, object]]] = {
    "classifier": ({"sequence": 2}, ["bad", "good"], {"name": "classification", "text": "text", "label": "label"}),
    "ner": ({"token": 3}, ["B-PER", "I-PER", "O"], {"name": "ner", "crf": False, "scheme": "entities"}),
    "qa": ({"span": 2}, [], {"name": "squad", "stride": 16, "max_answer": 30, "threshold": 0.0}),
    "choice": ({"choice": 1}, [], {"name": "choice"}),
}


def _models(root: Path) -> None:
    """Write models, and what needs none."""
    words = learnable.tokenizer()
    learnable.model(root / "bertree", words, layers=2, width=16, pooler=True)
    learnable.model(root / "own", words, layers=1, width=16, residual="pre-norm", embedding_norm=False)
    a = Transformer().with_values({"vocab_size": words.size, "layers": 1, "width": 16, "heads": 2, "max_positions": 64})
    for name, (heads, labels, task) in _HEADS.items():
        contents = Contents(a, build(a, heads), words, labels, task=task | {"max_length": 24})
        folder.write(contents, root / name)
    pooling = PoolingConfig(
        "mean", True, (Dense(8, "tanh", True),), "cosine", (("query", "the "), ("document", "")), ""
    )
    folder.write(Contents(a, build(a, {}, vector=pooling), words, max_length=24), root / "vectors")
    _tables(root)


def _tables(root: Path) -> None:
    """Write tables and texts."""
    rows = learnable.feelings(40)
    (root / "data").mkdir()
    for suffix in ("csv", "tsv", "jsonl", "parquet"):
        learnable.write(root / "data" / f"train.{suffix}", rows)
        learnable.write(root / "data" / f"scores.{suffix}", learnable.scores(30))
    learnable.write(root / "data" / "train.conll", learnable.tagged(30))
    learnable.write(root / "data" / "tagged.jsonl", learnable.tagged(30))
    learnable.write(root / "data" / "train.json", learnable.squad(24))
    learnable.write(root / "data" / "choices.jsonl", learnable.choices(24))
    pairs = [
        {"sentence1": row["one"], "sentence2": row["two"], "score": number % 6} for number, row in _numbered_pairs(40)
    ]
    for suffix in ("csv", "jsonl"):
        learnable.write(root / "data" / f"pairs.{suffix}", pairs)
    lines = [str(row["text"]) for row in learnable.feelings(30, 3)]
    (root / "lines.txt").write_text("\n".join(lines) + "\n")
    paragraphs = [" . ".join(lines[at : at + 3]).capitalize() + " ." for at in range(0, 30, 2)] * 4
    (root / "texts.txt").write_text("\n\n".join(f"{number} {text}" for number, text in enumerate(paragraphs)))
    documents = [{"id": f"d{number}", "text": line, "year": number % 3} for number, line in enumerate(lines)]
    learnable.write(root / "documents.jsonl", documents)
    (root / "scores").mkdir()
    (root / "scores" / "metrics.json").write_text('{"accuracy": 0.9, "task": "sst-2", "examples": 30, "split": "dev"}')
    learnable.write(root / "more.jsonl", [{"id": "new", "text": "the red boat is on the river"}])
    numbers = [[round(0.1 * ((n * 7 + i) % 11 - 5), 2) for i in range(6)] for n in range(len(learnable.WORDS))]
    glove = [f"{word} {' '.join(map(str, row))}" for word, row in zip(learnable.WORDS, numbers, strict=True)]
    (root / "glove.txt").write_text("\n".join(glove) + "\n")


def _numbered_pairs(count: int) -> list[tuple[int, learnable.Row]]:
    return list(enumerate(learnable.pairs(count)))


def _more_tokenizers(root: Path) -> None:
    """Write tokenizers in the files of the original releases, each with a model of its size."""
    import sentencepiece

    from bertree.text import tokenizer_training, vocabulary_files
    from bertree.text.tokenizer import Tokenizer

    text = (root / "texts.txt").read_text()
    plain = tokenizer_training.train(lambda: [text], "wordpiece", 200)
    ordered = sorted(plain.backend.get_vocab().items(), key=lambda item: item[1])
    model = learnable.model(root / "vocab", plain, layers=1, width=16)
    _clear(model)
    (model / "vocab.txt").write_text("\n".join(token for token, _ in ordered) + "\n")
    bpe = tokenizer_training.train(lambda: [text], "bpe", 350)
    model = learnable.model(root / "bpe", bpe, layers=1, width=16)
    _clear(model)
    bpe.backend.model.save(str(model))
    content = io.BytesIO()
    options = {
        "vocab_size": 60,
        "control_symbols": ["[CLS]", "[SEP]", "[MASK]"],
        "pad_id": 3,
        "hard_vocab_limit": False,
        "num_threads": 1,
    }
    lines = iter(text.split("\n\n"))
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=lines, model_writer=content, minloglevel=2, **options)
    unigram = Tokenizer(vocabulary_files.build_sentencepiece(content.getvalue(), {}))
    model = learnable.model(root / "spiece", unigram, layers=1, width=16)
    _clear(model)
    (model / "spiece.model").write_bytes(content.getvalue())
    _left_to_right(root)
    _xlnet(root / "xlnet")
    _reformer(root / "reformer", text)


def _left_to_right(root: Path) -> None:
    """Write members of GPT, CTRL and Transformer-XL: as Hugging Face does, and one of bertree with control codes."""
    words = left_to_right.gpt_tokenizer()
    for member, name in (("gpt2", "my-gpt"), ("ctrl", "my-ctrl"), ("transformer-xl-adaptive", "my-xl")):
        a = left_to_right.member(member, words.size)
        to, controls = ("bertree", ("boat", "tree")) if member == "ctrl" else ("huggingface", ())
        folder.write(Contents(a, build(a, {"mask": 0}), words, controls=controls), root / name, to=to)


def _xlnet(path: Path) -> None:
    """Write a model of another family, as Hugging Face does, with its own vocabulary file."""
    from bertree.model.presets import PRESETS
    from tests.support.xlnet_pieces import small_model

    sizes = {"vocab_size": 130, "layers": 1, "width": 16, "heads": 2, "ffn_width": 32, "max_positions": 64}
    a = PRESETS["xlnet-base"].architecture.with_values(sizes)
    folder.write(Contents(a, build(a, {"mask": 0})), path, to="huggingface")
    (path / "spiece.model").write_bytes(small_model())


def _reformer(path: Path, text: str) -> None:
    """Write a model that hashes, as Hugging Face does, with a SentencePiece model of another kind."""
    import sentencepiece

    from bertree.model.presets import PRESETS

    sizes = {"layers": 2, "width": 16, "heads": 2, "head_width": 8, "ffn_width": 32, "vocab_size": 90}
    hashed = {"attention": "chunked,lsh", "chunk_length": 8, "lsh_chunk_length": 8, "buckets": "4", "hashes": 2}
    axial = {"axial_shape": "8,16", "axial_widths": "6,10", "duplicates": "each"}
    a = PRESETS["reformer-enwik8"].architecture.with_values({**sizes, **hashed, **axial})
    folder.write(Contents(a, build(a, {"mask": 0})), path, to="huggingface")
    content, lines = io.BytesIO(), iter(text.split("\n\n"))
    options = {"vocab_size": 90, "model_type": "bpe", "minloglevel": 2, "num_threads": 1}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=lines, model_writer=content, **options)
    (path / "spiece.model").write_bytes(content.getvalue())


def _clear(model: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model / name).unlink(missing_ok=True)


def _stopped(runner: Runner, command: tuple[str, ...], out: str, needs: dict[str, str], sample: str) -> None:
    """Make a run that was stopped, and the same as it ends when it is resumed; in the folder of the cases, since a run
    knows the paths of its input."""
    folder = runner.case_folder
    folder.mkdir()
    for name, source in needs.items():
        copy(runner.samples / source, folder / name)
    begin = [word for word in command if word != "--resume"]
    result = runner.command(begin, folder, stop_after=STOP_AT)
    assert result.code == 128 + signal.SIGTERM, result.err
    copy(folder / out, runner.samples / f"{sample}-stopped")
    result = runner.command(command, folder)
    assert result.code == 0 or LEARNED_NOTHING in result.err, result.err
    copy(folder / out, runner.samples / sample)
    if "store" in needs:
        shutil.rmtree(runner.samples / "store" / "index", ignore_errors=True)
        copy(folder / "store" / "index", runner.samples / "store" / "index")
    shutil.rmtree(folder)
