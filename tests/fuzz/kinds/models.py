"""Model folders: config.json, bertree.toml, weights, and the files of sentence-transformers."""

import json
from pathlib import Path
from random import Random

import numpy as np

from tests.fuzz.case import OUT, Case, Change, Kind
from tests.fuzz.mutations import raw, tensors, trees
from tests.fuzz.running import Result, Runner

MASKED, TEXT = "the [MASK] of boat", "the boat is glad"
SENTENCE_FILES = (
    *("modules.json", "1_Pooling/config.json", "2_Dense/config.json", "sentence_bert_config.json"),
    "config_sentence_transformers.json",
)
VERBS: dict[str, tuple[str, ...]] = {
    "hf": ("verify", "info", "fill", "convert", "embed", "similar"),
    "bertree": ("verify", "info", "fill", "convert", "embed", "features"),
    "own": ("verify", "info", "fill", "convert", "embed", "features"),
    "xlnet": ("verify", "info", "fill", "convert", "embed", "features"),
    "reformer": ("verify", "info", "convert", "embed"),
    "my-gpt": ("verify", "info", "convert", "embed", "generate", "beams", "perplexity"),
    "my-ctrl": ("verify", "info", "convert", "generate", "perplexity", "attribute"),
    "my-xl": ("verify", "info", "convert", "generate", "beams", "perplexity"),
    "int8": ("verify", "info", "fill", "convert", "embed"),
    "classifier": ("verify", "info", "predict", "convert", "evaluate"),
    "ner": ("verify", "info", "predict", "convert"),
    "qa": ("verify", "info", "answer", "convert"),
    "choice": ("verify", "info", "choose", "convert"),
    "vectors": ("verify", "info", "embed", "similar", "convert"),
    "sentences": ("verify", "info", "embed", "similar", "convert", "prompt"),
}


def command(model: str, verb: str, random: Random) -> list[str]:
    """Return the command of a verb."""
    to, precision = random.choice((("bertree", "int8"), ("bertree", "float32"), ("huggingface", "float16")))
    return {
        "info": ["info", model, "--json"],
        "verify": ["verify", model, "--json"],
        "fill": ["fill", model, MASKED, "--json"],
        "convert": ["convert", model, OUT, "--to", to, "--precision", precision],
        "embed": ["embed", model, "lines.txt", "--out", OUT],
        "similar": ["similar", model, TEXT, "a stone", "--json"],
        "prompt": ["similar", model, TEXT, "a stone", "--prompt", "query"],
        "generate": ["generate", model, TEXT, "--tokens", "5", "--json"],
        "beams": ["generate", model, TEXT, "--tokens", "5", "--beams", "2", "--json"],
        "perplexity": ["perplexity", model, "lines.txt", "--lines", "--json"],
        "attribute": ["attribute", model, TEXT, "--json"],
        "features": ["features", model, "lines.txt", "--out", OUT, "--layers", "sum-all"],
        "predict": ["predict", model, TEXT, "--json"],
        "answer": ["predict", model, TEXT, "--question", "which colour is it ?", "--json"],
        "choose": ["predict", model, '{"context": "a", "question": "which ?", "options": ["a", "b"]}', "--json"],
        "evaluate": ["evaluate", model, "--task", "classification", "--data", "data/train.csv", "--json"],
    }[verb]


def case(model: str, changes: list[Change], random: Random, verb: str | None = None) -> Case:
    """Return a case of a model folder and one of its verbs."""
    verb = verb or random.choice(VERBS[model])
    samples = {model: model, "lines.txt": "lines.txt"} | ({"data": "data"} if verb == "evaluate" else {})
    return Case(samples, changes, command(model, verb, random), check=_sound)


def _sound(case: Case, folder: Path, result: Result, runner: Runner) -> str:
    """Check that what was computed is numbers, and that changed weights are noticed."""
    return _finite(case, folder, result) or _noticed(case, folder, runner)


def _finite(case: Case, folder: Path, result: Result) -> str:
    if case.command[0] == "embed":
        rows = np.load(folder / OUT)
        return "" if rows.shape[0] == 30 and np.isfinite(rows).all() else f"vectors {rows.shape}, or not finite"
    if case.command[0] == "fill":
        probabilities = [entry["probability"] for mask in json.loads(result.out) for entry in mask]
        return "" if probabilities and 0 < sum(probabilities) <= 1.0001 else f"probabilities {probabilities}"
    return ""


def _noticed(case: Case, folder: Path, runner: Runner) -> str:
    """Check that `bertree verify` notices changed files, where the folder has checksums of them."""
    model = next((name for name in case.samples if name in VERBS), "")
    changed = [change.file for change in case.changes if _differs(folder, runner.samples, change.file)]
    listed = (folder / model / "bertree.toml").is_file() and not any("bertree.toml" in file for file in changed)
    if not model or not changed or not listed or runner.command(["verify", model], folder).code == 2:
        return ""
    return f"`bertree verify` accepts another {changed[0]}"


def _differs(left: Path, right: Path, file: str) -> bool:
    if not (right / file).is_file() or not (left / file).is_file():
        return False
    return (left / file).read_bytes() != (right / file).read_bytes()


def several(random: Random) -> int:
    """Draw how many changes a case has."""
    return random.choice((1, 1, 1, 1, 2, 3))


def _config(random: Random) -> Case:
    model = random.choice((*("hf", "xlnet", "reformer", "my-gpt", "my-xl") * 2, "sentences", "classifier"))
    file = f"{model}/config.json"
    if random.random() < 0.1:
        return case(model, [raw.path_change(file, random)], random)
    return case(model, [trees.json_change(file, random) for _ in range(several(random))], random)


def _toml(random: Random) -> Case:
    model = random.choice(("bertree", "own", "int8", "classifier", "ner", "qa", "choice", "vectors", "my-ctrl"))
    file = f"{model}/bertree.toml"
    if random.random() < 0.15:
        change = random.choice((raw.path_change, raw.bytes_change))(file, random)
        return case(model, [change], random)
    table = random.choice(((), ("architecture",), ("architecture",), ("model",), ("heads",), ("task",), ("vector",)))
    return case(model, [trees.toml_change(file, random, table) for _ in range(several(random))], random)


def _weights(random: Random) -> Case:
    model = random.choice(list(VERBS))
    file = f"{model}/model.safetensors"
    if model == "sentences" and random.random() < 0.4:
        file = f"{model}/2_Dense/model.safetensors"
    make = random.choice((tensors.tensors_change,) * 4 + (raw.bytes_change, raw.path_change))
    return case(model, [make(file, random)], random)


def _sentences(random: Random) -> Case:
    file = f"sentences/{random.choice(SENTENCE_FILES)}"
    if random.random() < 0.15:
        return case("sentences", [random.choice((raw.path_change, raw.bytes_change))(file, random)], random)
    return case("sentences", [trees.json_change(file, random) for _ in range(several(random))], random)


KINDS = (
    Kind("config", "config.json of model folders", _config),
    Kind("description", "bertree.toml of model folders", _toml),
    Kind("weights", "model.safetensors: header and numbers, int8 too", _weights),
    Kind("sentence-files", "modules.json, pooling, prompts of sentence-transformers' folders", _sentences),
)
