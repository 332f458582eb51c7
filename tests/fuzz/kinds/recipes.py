"""Recipes, and settings on the command line."""

from random import Random

from tests.fuzz.case import OUT, Case, Kind
from tests.fuzz.kinds import models
from tests.fuzz.mutations import raw, trees, values
from tests.fuzz.samples import TUNE

STEPS = 3  # of a run whose recipe may ask for any number
KEYS = (
    *("lr", "optim.lr", "optim.betas", "betas", "weight_decay", "clip", "batch_tokens", "steps", "max_length"),
    *("warmup",),
    *("phases", "phases.0.steps", "phases.0.batch_tokens", "phases.1.max_length", "phases.²", "phases.-1.steps"),
    *("phases.9.steps", "phases.99999999999999999999.steps", "model.width", "model.layers", "model.heads"),
    *("model.preset",),
    *("model.start", "model", "data.masking", "masking", "data.store", "held_out_share", "seed", "run.seed", "device"),
    *("precision", "log_every", "save_every", "eval_every", "eval_tokens", "micro_tokens", "note", "name"),
    *("extends", ""),
    *("growth", "shape", "schedule.shape", "zzz", "zzz.zzz", "optim", "optim.", ".lr", "optim.lr.x", "a=b", "keep"),
)
TUNING_KEYS = (
    *("epochs", "batch", "lr", "max_length", "warmup", "shape", "evaluations", "patience", "held_out", "seed", "clip"),
    *("weight_decay", "dropout", "attention_dropout", "metric", "lstm", "lstm_layers", "micro_tokens", "crf", "scheme"),
    *("pooling", "layers", "normalize", "dimensions", "precision", "device", "zzz", "", "optim.lr", "stride", "best"),
)
AXES = ("layers", "width", "heads", "sharing", "segments", "vocab_size", "ffn_width", "attention", "zzz", "", "dropout")
WORDS = (
    *("token", "word", "ngram", "cosine", "linear", "adamw", "lamb", "cpu", "bfloat16", "inf", "1_000", "0x10"),
    *("1e3",),
)


def _recipe(random: Random) -> Case:
    file = "recipe.toml"
    if random.random() < 0.1:
        changes = [random.choice((raw.path_change, raw.bytes_change))(file, random)]
    else:
        changes = [trees.toml_change(file, random) for _ in range(models.several(random))]
    if random.random() < 0.6:
        return Case({file: file}, changes, ["recipe", "show", file])
    command = ["pretrain", file, "--store", "store", "--out", OUT]
    return Case({file: file, "store": "store"}, changes, command, stop_after=STEPS, writes=(OUT, "store/index"))


def setting(keys: tuple[str, ...], random: Random) -> str:
    """Draw `key=value`."""
    drawn = random.choice((values.value(random), random.choice(WORDS), random.choice(values.TEXTS)))
    value = trees.toml_value(drawn) if random.random() < 0.6 else str(drawn)
    if random.random() < 0.05:
        value = random.choice((values.nested(100_000), values.DIGITS, "[" * 50_000, "{a=" * 5000))
    equals = "=" if random.random() < 0.95 else random.choice(("", "==", " = ", ":"))
    return f"{random.choice(keys)}{equals}{value}".replace("\0", "\\0")[:120_000]


def _settings(random: Random) -> Case:
    verb = random.choice(("recipe", "recipe", "pretrain", "finetune", "embeddings", "info"))
    keys = {"recipe": KEYS, "pretrain": KEYS, "info": AXES}.get(verb, TUNING_KEYS)
    settings = [setting(keys, random) for _ in range(models.several(random))]
    samples, command = {
        "recipe": (
            ("recipe.toml",),
            ["recipe", "show", random.choice(("recipe.toml", "bert-base", "albert-base-tiny"))],
        ),
        "pretrain": (("recipe.toml", "store"), ["pretrain", "recipe.toml", "--store", "store", "--out", OUT]),
        "finetune": (
            ("bertree", "data"),
            ["finetune", "bertree", "--task", "classification", "--data", "data/train.csv", "--out", OUT, *TUNE],
        ),
        "embeddings": (
            ("bertree", "data"),
            ["embeddings", "train", "bertree", "--data", "data/pairs.csv", "--out", OUT, *TUNE],
        ),
        "info": ((), ["info", "bert-tiny"]),
    }[verb]
    names = tuple(part for setting in settings for part in (setting.partition("=")[0].strip(), setting[:40]) if part)
    names += tuple(key.rpartition(".")[2] for key in names if "." in key)
    command += ["--", *settings] if settings[0].startswith("-") else settings
    case = Case({name: name for name in samples}, [], command, names=names, stop_after=STEPS, codes=(0, 1, 2))
    case.writes = (OUT, "store/index")
    return case


KINDS = (
    Kind("recipe", "recipes (.toml), shown and run", _recipe),
    Kind("settings", "key=value on the command line", _settings),
)
