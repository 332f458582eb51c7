"""Tasks by name: those of one's own work wherever a name does, and help comes from the registry."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import bertree
from bertree.errors import UserError
from bertree.tasks import registry
from bertree.tasks.columns import Columns
from bertree.tasks.registry import make_task, register_task, task_help, task_names
from bertree.tasks.tagging.task import TaggingTask
from bertree.tasks.text import TextTask, text_task
from tests.support import learnable
from tests.support.command import Command


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = dict(registry.TASKS)
    yield
    registry.TASKS.clear()
    registry.TASKS.update(before)


def test_help_names_every_task_and_what_it_predicts() -> None:
    for entry in registry.TASKS.values():
        assert entry.task.about, entry.name
        assert f"{entry.name} ({entry.task.about})" in task_help()
    assert [entry.name for entry in registry.TASKS.values() if entry.own_data] == [
        *("classification", "regression", "tagging", "choice")
    ]
    assert {entry.kind for entry in registry.TASKS.values()} == {
        *("classification", "regression", "tagging", "question answering", "multiple choice")
    }


def test_the_registry_does_not_import_torch() -> None:
    code = "import sys, bertree.tasks.registry; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", ["SST2", "sst_2", "Squad-1.1", "CoNLL-2003", "AG News"])
def test_names_are_compared_without_signs(name: str) -> None:
    assert make_task(name).name in task_names()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "sst-3"}, "sst-2"),
        ({"name": "sst-2", "text": "body"}, "classification, regression, tagging"),
        ({"name": "tagging", "pair": "b"}, "`pair`"),
    ],
)
def test_an_unknown_task_or_column_names_the_possible_ones(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_task(**arguments)


def test_a_value_a_class_and_a_function_can_be_registered() -> None:
    value = TextTask("moods", ("bad", "good"), about="a mood")
    assert register_task(value) is value
    assert make_task("moods") is value

    @register_task
    class Mails(TextTask):
        name = "mails"
        labels = ("ham", "spam")
        columns = Columns(("body",), label=("folder",))
        aliases = {"junk": "spam"}  # noqa: RUF012
        metric = "macro_f1"

    task = make_task("mails")
    assert isinstance(task, Mails)
    assert (task.labels, task.metric, task.aliases) == (("ham", "spam"), "macro_f1", {"junk": "spam"})
    assert registry.TASKS["mails"].columns == ()

    @register_task
    def letters(text: str | None = None, label: str | None = None) -> TaggingTask:
        return TaggingTask("letters", text=text, label=label)

    assert make_task("letters", text="0", label="3") == TaggingTask("letters", text="0", label="3")
    assert "mails" in task_help()


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (lambda: text_task(), "there is such a task"),
        (lambda: 3, "must be, or return, a task"),
        (lambda needed: text_task(), "without arguments"),
        (TextTask("--"), "with a name"),
    ],
)
def test_what_is_no_task_is_refused(task: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        register_task(task)


def test_a_task_of_ones_own_is_trained_evaluated_and_predicts(command: Command, tmp_path: Path) -> None:
    register_task(TextTask("moods", ("bad", "good"), columns=Columns(quoting="auto"), about="a mood"))
    start = learnable.model(tmp_path / "start", learnable.tokenizer())
    for name, rows in (("train.csv", learnable.feelings(240)), ("dev.csv", learnable.feelings(30, 1))):
        learnable.write(tmp_path / "data" / name, rows)
    data, out = tmp_path / "data", tmp_path / "out"
    command.well(
        "finetune", start, "--task", "moods", "--data", data, "--out", out, *learnable.SETTINGS, "batch=16", "epochs=8"
    )
    scores = command.well("evaluate", out / "model", "--task", "moods", "--data", data, "--json").json
    assert scores["accuracy"] > 0.9
    (line,) = bertree.load(out / "model").predict(["the road is happy"])
    assert line["predicted"] == "good"
    del registry.TASKS["moods"]
    result = command("predict", out / "model", "happy")
    assert result.code == 2
    assert "moods" in result.err
    assert "register_task" in result.err
