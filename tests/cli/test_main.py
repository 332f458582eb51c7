"""The command as a user runs it: right input, wrong input, exit codes, one line of error."""

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import run_bertree


def test_the_tree_and_every_preset() -> None:
    from bertree.model.presets import PRESETS

    tree = run_bertree("info")
    assert tree.returncode == 0
    for name, point in PRESETS.items():
        assert point.study or name in tree.stdout
    listed = json.loads(run_bertree("info", "--json").stdout)
    assert {entry["name"] for entry in listed} == set(PRESETS)


def test_one_point() -> None:
    shown = run_bertree("info", "albert-base", env={"COLUMNS": "120", "PATH": ""})
    assert "11,683,584" in shown.stdout
    assert "30522" in shown.stdout  # the parent's value beside its own
    point = json.loads(run_bertree("info", "albert-base", "--json").stdout)
    assert point["parent"] == "bert-base"
    assert point["architecture"]["embedding_width"] == 128
    assert point["parameters"] == {
        "embeddings": 4005120, "encoder": 7087872, "pooler": 590592, "mlm_head": 128688, "total": 11683584,
    }  # fmt: skip
    turned = json.loads(run_bertree("info", "albert-base", "sharing=none", "embedding_width=768", "--json").stdout)
    assert turned["parameters"]["total"] == 109081344
    assert turned["parent"] == "albert-base"


def test_a_folder_is_a_point_too(minilm: Path) -> None:
    point = json.loads(run_bertree("info", str(minilm), "--json").stdout)
    assert point["parameters"]["total"] == 22713216


def test_fill(small_folder: Path) -> None:
    out = run_bertree("fill", str(small_folder), "The capital of France is [MASK].", "-k", "3")
    assert out.returncode == 0
    assert len(out.stdout.strip().splitlines()) == 4
    masks = json.loads(run_bertree("fill", str(small_folder), "[MASK] [MASK]", "-k", "2", "--json").stdout)
    assert [len(mask) for mask in masks] == [2, 2]
    assert set(masks[0][0]) == {"token", "probability", "id"}


def test_convert_both_ways(small_folder: Path, tmp_path: Path) -> None:
    there, back = tmp_path / "hf", tmp_path / "back"
    assert run_bertree("convert", str(small_folder), str(there), "--to", "huggingface").returncode == 0
    assert run_bertree("convert", str(there), str(back), "--to", "bertree").returncode == 0
    assert (back / "model.safetensors").read_bytes() == (small_folder / "model.safetensors").read_bytes()
    again = run_bertree("convert", str(there), str(back), "--to", "bertree")
    assert again.returncode == 2
    assert "--force" in again.stderr
    assert run_bertree("convert", str(there), str(back), "--to", "bertree", "--force").returncode == 0


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
    "verb": (["fil"], "fil"),
    "meta": (["fill", "FOLDER", "[MASK]", "--device", "meta"], "cannot be used"),
    "device": (["fill", "FOLDER", "[MASK]", "--device", "warp"], "device 'warp'"),
    "truncated": (["convert", "TRUNCATED", "OUT", "--to", "huggingface"], "not a whole safetensors file"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_line_and_exit_code_2(case: str, small_folder: Path, minilm: Path, tmp_path: Path) -> None:
    arguments, reason = WRONG[case]
    if "TRUNCATED" in arguments:
        shutil.copytree(small_folder, tmp_path / "truncated")
        (tmp_path / "truncated" / "model.safetensors").write_bytes(b"\x00" * 1000)
    places = {"FOLDER": small_folder, "MINILM": minilm, "OUT": tmp_path / "out", "TRUNCATED": tmp_path / "truncated"}
    out = run_bertree(*(str(places.get(word, word)) for word in arguments))
    assert out.returncode == 2
    assert reason in out.stderr
    assert len(out.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_text_is_never_markup(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n[unused0]\n[/x]\na\n")
    out = run_bertree("fill", "bert-tiny", "a [MASK]", "--tokenizer", str(tmp_path), "-k", "8")
    assert out.returncode == 0
    assert "[unused0]" in out.stdout
    assert "[/x]" in out.stdout


def test_other_files_are_not_deleted(small_folder: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("some words to train on\n\n" * 50)
    out = run_bertree("tokenizer", "train", str(text), "--vocab-size", "60", "--out", str(small_folder))
    assert out.returncode == 2
    assert "holds other files" in out.stderr
    assert (small_folder / "model.safetensors").exists()


def test_help_teaches() -> None:
    for verb in ((), ("info",), ("fill",), ("convert",)):
        out = run_bertree(*verb, "--help")
        assert out.returncode == 0
        assert "bertree" in out.stdout
    assert "[MASK]" in run_bertree("fill", "--help").stdout
    assert run_bertree("--version").stdout.startswith("bertree 0.")
