"""Runs and studies over HTTP: only known files of the served folders, whatever a client asks and a file holds."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serve.page.conftest import write_runs
from tests.support import asking
from tests.support.asking import Asker


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("served") / "runs"
    write_runs(runs)
    return runs


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Asker]:
    """A server of runs alone."""
    with asking.start([("mine", folder)], threads=1) as started:
        yield started


def test_runs_and_studies_are_listed_with_how_far_they_are(server: Asker) -> None:
    runs = {run.pop("name"): run for run in server.get("/runs").json["runs"]}
    assert list(runs) == ["mine/ended", "mine/going", "mine/study"]
    going, study = runs["mine/going"], runs["mine/study"]
    assert (going["step"], going["steps"], going["loss"], going["ended"]) == (40, 100, 5.0, False)
    assert runs["mine/ended"]["ended"]
    assert (study["kind"], study["step"], study["steps"], study["ended"]) == ("study", 1, 2, False)


def test_a_run_has_its_curves_and_a_study_its_table(server: Asker) -> None:
    run = server.get("/run?name=mine%2Fgoing").json
    curves = {(curve["kind"], curve["name"]): curve for curve in run["curves"]}
    assert set(curves) == {("training", "loss"), ("training", "lr"), ("evaluation", "loss"), ("evaluation", "accuracy")}
    assert curves["training", "loss"]["steps"] == list(range(1, 41))
    assert curves["evaluation", "loss"]["values"] == [7.25]
    assert run["facts"] == {"command": "bertree pretrain going"}
    study = server.get("/study?name=mine%2Fstudy").json
    assert study["table"].startswith("# Own study")
    assert [step["done"] for step in study["steps"]] == [True, False]


@pytest.mark.parametrize(
    "name", ["../runs/going", "mine/../going", "/etc/passwd", "mine/study", "mine/going/", "", "%00"]
)
def test_a_name_that_is_not_listed_opens_nothing(server: Asker, name: str) -> None:
    answer = server.get(f"/run?name={name}")
    assert answer.status == 404
    assert "/tmp" not in answer.message


def test_damaged_files_and_links_are_left_out_or_refused_without_a_path(tmp_path: Path) -> None:
    write_runs(tmp_path / "runs")
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "metrics.jsonl").write_text('{"kind": "train", "step": 1, "loss": 1}\n')
    os.symlink(secret, tmp_path / "runs" / "linked")
    (tmp_path / "runs" / "file").mkdir()
    os.symlink(secret / "metrics.jsonl", tmp_path / "runs" / "file" / "metrics.jsonl")
    (tmp_path / "runs" / "going" / "metrics.jsonl").write_bytes(b'\xff{]\n{"step": 1e400, "kind": "train"}\n[1]\n{"st')
    plan = tmp_path / "runs" / "study" / "plan.json"
    steps = [{"cell": "a", "seed": 0, "step": "x", "do": "y", "folder": "../../secret"}]
    plan.write_text(json.dumps({"study": "own", "steps": steps}))
    with asking.start([("mine", tmp_path / "runs")], threads=1) as server:
        assert [run["name"] for run in server.get("/runs").json["runs"]] == ["mine/ended", "mine/going", "mine/study"]
        assert server.get("/run?name=mine/going").json["curves"] == []
        assert server.get("/study?name=mine/study").json["steps"][0]["done"] is False
        plan.write_text('{"steps": 5}')
        assert [run["name"] for run in server.get("/runs").json["runs"]] == ["mine/ended", "mine/going"]
        answer = server.get("/study?name=mine/study")
        assert answer.status == 503
        assert str(tmp_path) not in answer.message
