"""The verb `plan`."""

import xml.etree.ElementTree
from pathlib import Path

import pytest

from tests.support.command import Command


@pytest.mark.slow
def test_a_plan_is_at_most_80_columns_wide(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for arguments in (
        ("megatron-gpt-8.3b", "--devices", 64, "--tokens", "300e9"),
        ("t-nlg-17b", "--devices", 4096, "--card", 16, "--batch-tokens", 2**26),
        ("t-nlg-17b", "--devices", 8, "--card", 16),
    ):
        lines = command.well("plan", *arguments).out.splitlines()
        assert max(map(len, lines)) <= 80
        assert not any("…" in line for line in lines)


def test_the_recommended_mesh_is_marked_and_explained(command: Command) -> None:
    output = command.well("plan", "megatron-bert-3.9b", "--devices", 8, "--card", 80, "--tokens", "1e9").out
    marked = [line for line in output.splitlines() if line.startswith(("0*", "1*", "2*", "3*"))]
    assert len(marked) == 1
    assert f"scale.zero={marked[0][0]} " in output
    assert "usable GiB" in output
    assert "MFU" in output


def test_a_plan_as_json(command: Command) -> None:
    report = command.well("plan", "bert-large", "layers=48", "--devices", 4, "--card", 24, "--zero", 3, "--json").json
    meshes = report["meshes"]
    assert isinstance(meshes, list)
    assert {mesh["zero"] for mesh in meshes} == {3}
    assert {mesh["tensor"] for mesh in meshes} == {1, 2, 4}
    for mesh in meshes:
        assert sum(mesh["bytes_at_peak"].values()) == pytest.approx(mesh["peak_bytes"], abs=5)


def test_the_chart_is_a_picture_with_a_bar_for_each_mesh(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "plan.svg"
    result = command.well("plan", "megatron-bert-1.3b", "--devices", 8, "--card", 24, "--plot", file)
    assert str(file) in result.out.replace("\n", "")
    root = xml.etree.ElementTree.parse(file).getroot()
    assert root.tag.endswith("svg")
    texts = [node.text or "" for node in root.iter() if node.tag.endswith("text")]
    assert sum(text.startswith("ZeRO ") for text in texts) == 16
    assert sum("*" in text and text.startswith("ZeRO") for text in texts) == 1
    width = float(root.attrib["width"])
    for node in root.iter():
        if node.tag.endswith("rect"):
            assert float(node.attrib.get("x", 0)) + float(node.attrib["width"]) <= width


def test_mistakes_are_one_line(command: Command) -> None:
    result = command("plan", "bert-base", "--devices", 8, "--tensor", 5)
    assert result.code == 2
    assert result.lines == ["bertree: tensor: 5 does not divide the 8 devices"]
