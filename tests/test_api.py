"""The public Python API: what `import bertree` gives, silent, with results and errors instead of prints and exits."""

import inspect
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bertree
from tests.support import learnable

VERBS = (
    *(
        "pretrain",
        "finetune",
        "evaluate",
        "distill",
        "train_embeddings",
        "compare",
        "prepare",
        "train_tokenizer",
        "load",
    ),
    *("embed_file", "find_pairs", "cluster_texts", "evaluate_embeddings", "write_features", "convert", "verify"),
)


def test_importing_loads_nothing_but_the_names() -> None:
    code = (
        "import sys; before = set(sys.modules); import bertree; names = dir(bertree); assert 'finetune' in names;"
        "new = {name.split('.')[0] for name in set(sys.modules) - before};"
        "print(sorted(new - set(sys.stdlib_module_names)), sum(name.startswith('bertree') for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['bertree'] 2", "bertree and bertree.version, no torch, no numpy"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({}, "0 None"), ({"ONEDNN_JIT_PROFILE": "2"}, "2 None"), ({"DNNL_JIT_PROFILE": "2"}, "None 2")],
)
def test_onednn_writes_no_files_for_profilers_unless_asked_to(variables: dict[str, str], expected: str) -> None:
    code = "import os, bertree; print(*map(os.environ.get, ('ONEDNN_JIT_PROFILE', 'DNNL_JIT_PROFILE')))"
    own = {key: value for key, value in os.environ.items() if not key.endswith("_JIT_PROFILE")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=own | variables)
    assert done.stdout.strip() == expected


def test_every_name_is_there_with_a_signature_and_a_docstring_with_an_example() -> None:
    assert set(VERBS) <= set(dir(bertree))
    for name in VERBS:
        function = getattr(bertree, name)
        assert inspect.signature(function).parameters
        assert len((function.__doc__ or "").splitlines()) > 1, name
    for name in dir(bertree):
        assert getattr(bertree, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'finetun'"):
        bertree.finetun  # noqa: B018


def test_a_run_returns_its_model_metrics_history_and_report(
    tmp_path: Path, small_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{'good' if number % 2 else 'bad'} film {number},{number % 2}" for number in range(40)]
    table = tmp_path / "films.csv"
    table.write_text("text,label\n" + "\n".join(rows) + "\n")
    run = bertree.finetune(
        small_folder, task="classification", data=table, out=tmp_path / "run", epochs=1, batch=8, optim={"lr": 1e-3}
    )
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "")
    assert run.signal is None
    assert run.metrics == json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert [row["kind"] for row in run.history][:2] == ["event", "train"]
    assert run.report.is_file()
    assert run.model.predict(["good film"])[0]["predicted"] in ("0", "1")
    assert "accuracy" in run._repr_html_()
    recipe = (tmp_path / "run" / "seed-0" / "recipe.toml").read_text()
    assert "epochs = 1" in recipe
    assert "lr = 0.001" in recipe
    scores = bertree.evaluate(run.model, task="classification", data=table)
    assert scores.metrics["examples"] == len(scores.predictions["dev"]) == 4, "the rows that were held out"
    assert "<th>accuracy</th>" in scores._repr_html_()
    again = bertree.evaluate(tmp_path / "run" / "model", task="classification", data=table)
    assert again.metrics["accuracy"] == scores.metrics["accuracy"]
    assert capsys.readouterr().out == ""
    with pytest.raises(bertree.UserError, match="`resume=True`"):
        bertree.finetune(small_folder, task="classification", data=table, out=tmp_path / "run")
    done = bertree.finetune(
        small_folder, task="classification", data=table, out=tmp_path / "run", resume=True, overrides=["epochs=1"],
        batch=8, lr=1e-3,
    )  # fmt: skip
    assert done.metrics == run.metrics


def test_a_warning_points_at_the_line_of_the_caller(small_folder: Path, tmp_path: Path) -> None:
    model, text = bertree.load(small_folder), "a b c " * 400
    shutil.copytree(small_folder, folder := tmp_path / "theirs")
    bertree.convert(small_folder, folder, "huggingface", force=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["BertForSomethingNew"]}))
    calls = {
        "embed": lambda: model.embed([text] * 3),
        "hidden": lambda: model.hidden([text]),
        "fill_mask": lambda: model.fill_mask("[MASK] " + text),
        "load": lambda: bertree.load(folder),
    }
    for name, call in calls.items():
        with pytest.warns(bertree.BertreeWarning) as caught:
            call()
        lines = {(warning.filename, warning.lineno) for warning in caught}
        assert lines == {(__file__, call.__code__.co_firstlineno)}, name


def test_progress_is_shown_when_asked_for(
    tmp_path: Path, token_store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"phases": [{"steps": 2, "batch_tokens": 512, "max_length": 32}], "warmup": 1, "layers": 1}
    run = bertree.pretrain("bert-base-tiny", store=token_store, out=tmp_path / "run", progress=True, **settings)
    assert "step 2/2" in capsys.readouterr().out
    assert run.metrics["step"] == 2
    assert run.model.architecture.layers == 1


@pytest.mark.parametrize(
    ("function", "arguments", "key"),
    [
        ("load", ("./nowhere",), "./nowhere"),
        ("pretrain", ("bert-base-tini",), "bert-base-tiny"),
        ("finetune", ("default",), "sst2"),
        ("evaluate", ("default",), "sst2"),
        ("distill", ("default",), "store"),
        ("train_embeddings", ("default",), "nowhere"),
        ("compare", (["default"],), "two models"),
        ("prepare", ("nowhere", "default", "out"), "nowhere"),
        ("train_tokenizer", ("nowhere", "out"), "nowhere"),
        ("find_pairs", ("default", "nowhere.txt"), "nowhere.txt"),
    ],
)
def test_a_mistake_is_a_user_error_that_names_it(
    function: str, arguments: tuple[object, ...], key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = {
        "finetune": {"task": "sst2s", "data": "nowhere"},
        "evaluate": {"task": "sst2s", "data": "nowhere"},
        "train_embeddings": {"data": "nowhere"},
    }
    key = "sst-2" if key == "sst2" else key
    with pytest.raises(bertree.UserError, match=key):
        getattr(bertree, function)(*arguments, **options.get(function, {}))
    assert not list(tmp_path.iterdir()), "a mistake leaves nothing behind"


def test_arguments_that_a_function_does_not_have_are_user_errors(small_folder: Path) -> None:
    model: Any = bertree.load(small_folder)
    api: Any = bertree
    wrong: dict[str, Callable[[], object]] = {
        "load: has no argument 'dtype'; known: device, name": lambda: api.load(small_folder, dtype="float16"),
        "embed: has no argument 'txts'; did you mean 'texts'": lambda: model.embed(txts=["a"]),
        "Tokenizer: has no argument 'foo'": lambda: model.required_tokenizer("a", foo=1),
        "finetune: missing a required argument: 'model'": lambda: api.finetune(),
        "fill_mask: too many positional arguments": lambda: model.fill_mask("a", 1, 2, 3),
    }
    for message, call in wrong.items():
        with pytest.raises(bertree.UserError, match=message):
            call()
    assert pickle.loads(pickle.dumps(bertree.load)) is bertree.load, "other processes can be given it"


def test_a_type_error_inside_a_function_stays_one(small_folder: Path) -> None:
    def fail(text: str) -> str:
        raise TypeError("of the user's own")

    with pytest.raises(TypeError, match="of the user's own"):
        bertree.load(small_folder).embed(map(fail, ["a"]))


def test_a_tokenizer_and_a_store_from_python(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n\n".join(" ".join(learnable.FILL) + f" number {n}." for n in range(60)))
    tokenizer = bertree.train_tokenizer(tmp_path / "text.txt", tmp_path / "tokenizer", vocab_size=100)
    assert tokenizer.report is not None
    assert tokenizer.tokenizer.size <= 100
    store = bertree.prepare(tmp_path / "text.txt", tmp_path / "tokenizer", tmp_path / "store", workers=1)
    assert store.store.documents == 60
