"""Nothing is replaced by accident: no verb writes over a model, run, store or index that is not its own."""

import hashlib
import shutil
from pathlib import Path

import pytest

import bertree
from bertree.errors import UserError
from tests.kill import cases
from tests.support import learnable
from tests.support.command import Command
from tests.support.shared import suite_has

TRAIN = "--data {table} --task classification --out {out}"
# A command for each verb that writes a folder, or a file of one.
COMMANDS = {
    "tokenizer train": "{text} --vocab-size 300 --out {out}",
    "prepare": "{text} --tokenizer {model} --out {out}",
    "pretrain": "bert-base-tiny --store {store} --out {out}",
    "adapt": "{model} {text} --out {out}",
    "finetune": "{model} " + TRAIN,
    "distill": "{model} --student {model} " + TRAIN,
    "embeddings train": "{model} --data {pairs} --out {out}",
    "embeddings evaluate": "{model} --data {pairs} --out {out}",
    "embed": "{model} {text} --out {out}/rows.npy",
    "index build": "{model} {text} --out {out}",
    "index evaluate": "{index} --questions {pairs} --out {out}",
    "index mine": "{index} --questions {pairs} --out {out}/rows.jsonl",
    "features": "{model} {text} --out {out}",
    "evaluate": "{model} --data {table} --out {out}",
    "study run": "albert-dropout --store {store} --out {out}",
    "pairs": "{model} {text} --out {out}/rows.jsonl",
    "cluster": "{model} {text} --out {out}/rows.jsonl",
    "glue": "--protocol {model} --data {table} --out {out}",
    "compare": "{model} {model} --seconds 0.1 --out {out}",
    "layers": "{model} --texts {text} --out {out}/report.html",
    "advise": "--task similarity --out {out}/report.html",
    "convert": "{model} {out} --to bertree",
}
KINDS = ("model", "run", "store", "index")


def contents(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def inputs(token_store: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Inputs of the commands, and a folder of each kind."""
    work = tmp_path_factory.mktemp("replace")
    (work / "text.txt").write_text("A brig lay at anchor.\n\nTea was poured at dawn.\n")
    (work / "table.csv").write_text("text,label\n" + "good,1\nbad,0\n" * 10)
    (work / "pairs.jsonl").write_text(
        '{"question": "Where is the brig?", "document": "a", "text1": "a", "text2": "b"}\n'
    )
    model = bertree.load(learnable.model(work / "model", learnable.tokenizer(), layers=4))
    with bertree.Index.build(model, [{"id": "a", "text": "A brig lay at anchor."}], work / "index"):
        pass
    step = work / "run" / "checkpoints" / "step-00000005"
    step.mkdir(parents=True)
    (step / "state.json").write_text("{}")
    (work / "run" / "model").mkdir()
    (work / "run" / "recipe.toml").write_text("")
    shutil.copytree(token_store, work / "store")
    names = {path.stem: path for path in work.iterdir()}
    for kind in KINDS:
        for file in ("rows.jsonl", "rows.npy", "report.html", "metrics.json"):
            (names[kind] / file).write_text("")
    return names


def test_every_verb_with_a_folder_to_write_is_tried() -> None:
    assert set(COMMANDS) == {verb for verb, options in cases.verbs().items() if "--out" in options} | {"convert"}


TRIED = [(verb, kind) for verb in COMMANDS for kind in KINDS]
SUITE = [(verb, KINDS[number % len(KINDS)]) for number, verb in enumerate(COMMANDS)]  # every verb and every kind


@pytest.mark.slow
@pytest.mark.parametrize(("verb", "kind"), suite_has(SUITE, TRIED))
def test_no_verb_writes_over_what_is_not_its_own(
    verb: str, kind: str, inputs: dict[str, Path], command: Command
) -> None:
    out = inputs[kind]
    before = contents(out)
    result = command(*verb.split(), *COMMANDS[verb].format(out=out, **inputs).split())
    assert result.code == 2
    assert str(out) in result.lines[-1], result.err
    assert contents(out) == before


@pytest.mark.slow
def test_a_model_is_saved_over_another_only_if_told_to(inputs: dict[str, Path], tmp_path: Path) -> None:
    own = shutil.copytree(inputs["model"], tmp_path / "own")
    for name in ("rows.jsonl", "rows.npy", "report.html", "metrics.json"):
        (own / name).unlink()
    before = contents(own)
    model = bertree.load(inputs["model"])
    with pytest.raises(UserError, match="holds a model already; give another folder, or `force=True`"):
        model.save(own)
    for kind in KINDS[1:]:
        with pytest.raises(UserError, match=r"is an? (run|token store|index); give another path, or remove it first"):
            model.save(inputs[kind], force=True)
    assert contents(own) == before
    model.save(own, precision="bfloat16", force=True)
    assert contents(own) != before
    bertree.load(own).save(own, precision="float16")
