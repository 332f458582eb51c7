"""Token stores."""

from pathlib import Path
from random import Random

from tests.fuzz.case import OUT, Case, Change, Kind
from tests.fuzz.mutations import raw, tensors, trees
from tests.fuzz.running import Result, Runner

PARTS = ("tokens-00000.bin", "sentences-00000.bin", "documents-00000.bin", "words.bin")
FORMATS = ("full-sentences", "segment-pair+nsp", "sentence-pair+sop", "doc-sentences", "stream")
MASKING = ("token", "word", "ngram", "next", "none", "token+static")
VERIFY = ["store", "verify", "store", "--json"]


def _changes(random: Random) -> list[Change]:
    draw = random.random()
    if draw < 0.35:
        return [trees.json_change("store/store.json", random)]
    if draw < 0.45:
        return [raw.path_change(f"store/{random.choice((*PARTS, 'store.json', 'tokenizer/tokenizer.json'))}", random)]
    if draw < 0.55:
        return [trees.json_change("store/tokenizer/tokenizer.json", random)]
    if draw < 0.65:
        return [_cached(random)]
    return [raw.bytes_change(f"store/{random.choice(PARTS)}", random)]


def _cached(random: Random) -> Change:
    """Change one of the lists of examples that a run keeps in the store."""
    seed = random.random()

    def make(path: Path) -> None:
        draw = Random(seed)
        file = draw.choice(sorted(path.iterdir()))
        change = draw.choice((tensors.tensors_change, raw.bytes_change, raw.path_change))
        change(file.name, draw).make(file)

    return Change("store/index", f"one of the files ({seed})", make)


def _case(random: Random) -> Case:
    verb = random.choice(("verify", "verify", "show", "show", "pretrain"))
    samples = {"store": "store"}
    changes = _changes(random)
    if verb == "verify":
        return Case(samples, changes, VERIFY, check=_same_content)
    if verb == "show":
        command = ["store", "show", "store", "--at", str(random.randrange(20)), "--format", random.choice(FORMATS)]
        command += ["--masking", random.choice(MASKING), "--max-length", random.choice(("16", "64", "512"))]
        return Case(samples, changes, command, check=_same_or_noticed, writes=("store/index",))
    command = ["pretrain", "recipe.toml", "--store", "store", "--out", OUT]
    writes = (OUT, "store/index")
    samples = {"store": "store", "recipe.toml": "recipe.toml"}
    return Case(samples, changes, command, check=_same_model_or_noticed, writes=writes, notes={"expected": "run"})


def _same_content(case: Case, folder: Path, result: Result, runner: Runner) -> str:
    """Check that a store that was found undamaged reads as before."""
    if result.out != runner.baseline(case, VERIFY).out:
        return "verify accepts the store, but prints something else about it"
    show = ["store", "show", "store", "--at", "3"]
    return "" if runner.command(show, folder).out == runner.baseline(case, show).out else "verify accepts another text"


def _same_or_noticed(case: Case, folder: Path, result: Result, runner: Runner) -> str:
    if result.out == runner.baseline(case, case.command).out:
        return ""
    return "" if runner.command(VERIFY, folder).code == 2 else "another example, and `store verify` finds nothing"


def _same_model_or_noticed(case: Case, folder: Path, result: Result, runner: Runner) -> str:
    model = Path("model", "model.safetensors")
    if (folder / OUT / model).read_bytes() == (runner.samples / case.notes["expected"] / model).read_bytes():
        return ""
    return "" if runner.command(VERIFY, folder).code == 2 else "another model, and `store verify` finds nothing"


KINDS = (Kind("store", "token stores: header, shards, lengths, tokenizer, cached lists", _case),)
