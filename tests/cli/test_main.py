"""The command as a user runs it: right input, wrong input, exit codes, one line of error."""

import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import typer
from typer.main import get_group

import bertree.cli
from bertree.cli.main import VERBS
from tests.support.command import Command


def test_the_tree_and_every_preset(command: Command) -> None:
    from bertree.model.presets import PRESETS

    tree = command.well("info")
    for name, point in PRESETS.items():
        assert point.study or name in tree.out
    listed = command.well("info", "--json").json
    assert {entry["name"] for entry in listed} == set(PRESETS)


def test_one_point(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    shown = command.well("info", "albert-base").out
    assert "11,683,584" in shown
    assert "30522" in shown  # the parent's value beside its own
    point = command.well("info", "albert-base", "--json").json
    assert point["parent"] == "bert-base"
    assert point["architecture"]["embedding_width"] == 128
    assert point["parameters"] == {
        "embeddings": 4005120, "encoder": 7087872, "pooler": 590592, "mlm_head": 128688, "total": 11683584,
    }  # fmt: skip
    turned = command.well("info", "albert-base", "sharing=none", "embedding_width=768", "--json").json
    assert turned["parameters"]["total"] == 109081344
    assert turned["parent"] == "albert-base"


def test_axes_that_a_kind_of_model_does_not_have_are_not_shown(command: Command) -> None:
    shown = {line.split(" ")[0] for line in command.well("info", "elmo").out.splitlines()}
    assert {"layers", "filters"} <= shown
    assert not {"heads", "attention", "segments", "residual"} & shown


def test_a_folder_is_a_point_too(minilm: Path, command: Command) -> None:
    point = command.well("info", minilm, "--json").json
    assert point["parameters"]["total"] == 22713216


def test_fill(small_folder: Path, command: Command) -> None:
    result = command.well("fill", small_folder, "The capital of France is [MASK].", "-k", "3")
    assert len(result.out.strip().splitlines()) == 4
    masks = command.well("fill", small_folder, "[MASK] [MASK]", "-k", "2", "--json").json
    assert [len(mask) for mask in masks] == [2, 2]
    assert set(masks[0][0]) == {"token", "probability", "id"}


def test_convert_both_ways(small_folder: Path, tmp_path: Path, command: Command) -> None:
    exported, back = tmp_path / "hf", tmp_path / "back"
    command.well("convert", small_folder, exported, "--to", "huggingface")
    command.well("convert", exported, back, "--to", "bertree")
    assert (back / "model.safetensors").read_bytes() == (small_folder / "model.safetensors").read_bytes()
    again = command("convert", exported, back, "--to", "bertree")
    assert again.code == 2
    assert "--force" in again.err
    command.well("convert", exported, back, "--to", "bertree", "--force")


WRONG = {
    "no such preset": (["info", "bert-bse"], "did you mean 'bert-base'"),
    "no such axis": (["info", "bert-base", "layer=6"], "did you mean 'layers'"),
    "impossible": (["info", "bert-base", "heads=7"], "7 heads cannot divide"),
    "no mask": (["fill", "FOLDER", "no mask"], "the text has no mask"),
    "no folder": (["fill", "./nowhere", "[MASK]"], "no such folder"),
    "no head": (["fill", "MINILM", "[MASK]"], "no MLM head"),
    "source": (["convert", "./nowhere", "OUT", "--to", "bertree"], "no such folder"),
    "kind": (["convert", "FOLDER", "OUT", "--to", "bertre"], "did you mean 'bertree'"),
    "axes": (["info", "bert-base", "layers=6", "--length", "600"], "only 512 positions"),
    "not a model": (["info", "/"], "not a model folder"),
    "long name": (["info", "x" * 400], "File name too long"),
    "option": (["fill", "FOLDER", "[MASK]", "-k", "0"], "--help"),
    "missing option": (["convert", "FOLDER", "OUT"], "--to"),
    "setting as an option": (["finetune", "FOLDER", "--learning-rate", "1"], "settings are written as learning_rate="),
    "unknown option of a verb without settings": (["embed", "FOLDER", "--bat"], "No such option: --bat (Possible"),
    "verb": (["fil"], "fil"),
    "meta": (["fill", "FOLDER", "[MASK]", "--device", "meta"], "cannot be used"),
    "device": (["fill", "FOLDER", "[MASK]", "--device", "warp"], "device 'warp'"),
    "truncated": (["convert", "TRUNCATED", "OUT", "--to", "huggingface"], "not a complete safetensors file"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_line_and_exit_code_2(
    case: str, small_folder: Path, minilm: Path, tmp_path: Path, command: Command
) -> None:
    arguments, reason = WRONG[case]
    if "TRUNCATED" in arguments:
        shutil.copytree(small_folder, tmp_path / "truncated")
        (tmp_path / "truncated" / "model.safetensors").write_bytes(b"\x00" * 1000)
    places = {"FOLDER": small_folder, "MINILM": minilm, "OUT": tmp_path / "out", "TRUNCATED": tmp_path / "truncated"}
    result = command(*(places.get(word, word) for word in arguments))
    assert result.code == 2
    assert reason in result.err
    assert len(result.lines) == 1
    assert not (tmp_path / "out").exists()


def test_text_is_never_markup(tmp_path: Path, command: Command) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n[unused0]\n[/x]\na\n")
    result = command.well("fill", "bert-tiny", "a [MASK]", "--tokenizer", tmp_path, "-k", "8")
    assert "[unused0]" in result.out
    assert "[/x]" in result.out


def test_other_files_are_not_deleted(small_folder: Path, tmp_path: Path, command: Command) -> None:
    text = tmp_path / "text.txt"
    text.write_text("some words to train on\n\n" * 50)
    result = command("tokenizer", "train", text, "--vocab-size", "60", "--out", small_folder)
    assert result.code == 2
    assert "holds other files" in result.err
    assert (small_folder / "model.safetensors").exists()


def test_help_teaches(command: Command) -> None:
    for verb in ((), ("info",), ("fill",), ("convert",)):
        assert "bertree" in command.well(*verb, "--help").out
    assert "[MASK]" in command.well("fill", "--help").out
    assert command.well("--version").out.startswith("bertree 0.")


def test_quiet_prints_the_result_alone(small_folder: Path, command: Command) -> None:
    loud = command.well("fill", "bert-tiny", "a [MASK]", "--tokenizer", small_folder, "--json")
    quiet = command.well("fill", "bert-tiny", "a [MASK]", "--tokenizer", small_folder, "--json", "--quiet")
    assert "random weights" in loud.err
    assert quiet.err == ""
    assert quiet.json == loud.json


@pytest.mark.slow
def test_memory_of_long_sequences(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("reformer-base", "reformer-enwik8"):
        shown = command.well("info", name, "--card", "24").out
        lines = shown[shown.index("training on long sequences") :].splitlines()
        assert max(map(len, lines)) <= 80
        assert lines[0].split()[-7:] == ["1,024", "2,048", "4,096", "8,192", "16,384", "32,768", "65,536"]
        for option in ("none of them", "lsh attention", "reversible layers", "feed-forward in chunks", "all of them"):
            assert sum(line.strip().startswith(option) for line in lines) >= 2
        assert "largest batch, 24 GB card" in shown
    point = command.well("info", "reformer-base", "--json").json
    needed = point["training_bytes_of_one_sequence"]
    assert needed["all of them"]["65536"] < needed["none of them"]["65536"] / 3
    assert "65536" in point["flops_per_token"]
    short = command.well("info", "reformer-base", "axial_shape=64,64").out
    assert "4,096" in short
    assert "8,192" not in short
    assert "training on long" not in command.well("info", "gpt2").out
    assert "training_bytes_of_one_sequence" not in command.well("info", "bert-base", "--json").json


def test_the_list_of_studies_shows_the_cost_of_every_size_in_80_columns(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = command.well("study", "list").out.splitlines()
    for name, study in command.well("study", "list", "--json").json.items():
        (line,) = [line for line in lines if line.startswith(f"{name} ")]
        assert len(line) <= 80
        for cost in study["cost"].values():
            assert cost.split(", ")[1].split(" on ")[0] in line


def test_imports_are_not_searched_for_garbage() -> None:
    code = (
        "import gc, sys; from bertree.cli.command import import_quickly; searches = []; "
        "gc.callbacks.append(lambda *_: searches.append(1)); import_quickly('inference.load'); "
        "assert 'torch' in sys.modules and gc.isenabled() and not searches, len(searches)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("module", VERBS)
def test_every_module_registers_the_verbs_that_are_looked_for_in_it(module: str) -> None:
    verbs = typer.Typer()
    import_module(f"bertree.cli.{module}").register(verbs)
    assert set(get_group(verbs).commands) == set(VERBS[module])


def test_no_module_with_verbs_is_forgotten() -> None:
    folder = Path(bertree.cli.__file__).parent
    assert {path.stem for path in folder.glob("*.py") if "def register(app" in path.read_text()} == set(VERBS)


def test_a_verb_imports_neither_other_verbs_nor_what_they_need() -> None:
    code = (
        "import sys; from bertree.cli.main import main; sys.argv[1:] = ['fill', 'default', 'a [MASK]']\n"
        "try: main()\nexcept SystemExit as end: assert not end.code\n"
        "print(*(name for name in sys.modules if name.startswith('bertree.') or name == 'torch._dynamo'))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    modules = set(output.splitlines()[-1].split())
    assert {"bertree.cli.model", "bertree.inference.load"} <= modules
    others = {f"bertree.cli.{name}" for name in VERBS if name != "model"}
    assert not modules & {"torch._dynamo", "bertree.data", *others}
