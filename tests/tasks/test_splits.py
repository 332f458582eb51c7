"""A folder that holds the task's own, for every task; and what only some releases have in their names."""

from pathlib import Path

import pytest

from bertree.errors import UserError
from bertree.tasks.files import find_splits, split_folders, split_in_name
from bertree.tasks.registry import make_task, task_names
from bertree.tasks.task import Splits

FILES = {"squad": ".json", "squad2": ".json"}
CALLED = {
    "ner": "CoNLL-2003",
    "squad": "SQuAD1.1",
    "squad2": "squad_v2.0",
    "race": "RACE",
    "hellaswag": "HellaSwag",
    "mnli": "MultiNLI",
    "ax": "diagnostics",
}


def touch(folder: Path, *files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        (folder / file).touch()


def shown(splits: Splits, below: Path) -> dict[str, list[str]]:
    return {split: [str(path.relative_to(below)) for path in paths] for split, paths in splits.items()}


@pytest.mark.parametrize("task", task_names())
def test_every_task_looks_into_the_folder_named_like_it(tmp_path: Path, task: str) -> None:
    kind = FILES.get(task, ".jsonl")
    expected = {"test": [f"test{kind}.gz"]} if task == "ax" else {"train": [f"train{kind}"], "test": [f"test{kind}.gz"]}
    for folder in (task, CALLED.get(task, task.upper())):
        data = tmp_path / f"above {folder}"
        touch(data / folder, f"train{kind}", f"test{kind}.gz")
        touch(data, f"dev{kind}")
        assert shown(make_task(task).splits(data), data / folder) == expected
        assert shown(make_task(task).splits(data / folder), data / folder) == expected
    # A model that was trained for the task may lie beside the data under the same name.
    touch(tmp_path / "data" / task, "model.safetensors", "config.toml")
    touch(tmp_path / "data", *(name for paths in expected.values() for name in paths))
    assert shown(make_task(task).splits(tmp_path / "data"), tmp_path / "data") == expected


def test_both_versions_in_a_folder_squad(tmp_path: Path) -> None:
    touch(tmp_path / "squad", "train-v1.1.json", "dev-v1.1.json", "dev-v2.0.json.zst")
    assert shown(make_task("squad2").splits(tmp_path), tmp_path / "squad") == {"dev": ["dev-v2.0.json.zst"]}
    assert list(make_task("squad").splits(tmp_path)) == ["train", "dev"]
    touch(tmp_path / "squad2.0", "validation-v2.0.json")
    assert shown(make_task("squad2").splits(tmp_path), tmp_path) == {"dev": ["squad2.0/validation-v2.0.json"]}


def test_parts_of_a_split(tmp_path: Path) -> None:
    both = ("dev-high.jsonl", "dev-middle.jsonl.xz")
    touch(tmp_path, *both)
    assert shown(find_splits(tmp_path, parts=("middle", "high")), tmp_path) == {"dev": list(both)}
    with pytest.raises(UserError, match="several files could be dev"):
        find_splits(tmp_path)
    touch(tmp_path, "dev-middle.jsonl")
    with pytest.raises(UserError, match=r"dev-high\.jsonl, dev-middle\.jsonl, dev-middle\.jsonl\.xz"):
        find_splits(tmp_path, parts=("middle", "high"))


def test_whole_and_in_pieces_is_not_clear(tmp_path: Path) -> None:
    touch(tmp_path, "train-00000-of-00002.parquet", "train-00001-of-00002.parquet", "train.tsv")
    with pytest.raises(UserError, match="several files could be train"):
        find_splits(tmp_path)


def test_folders_named_like_splits(tmp_path: Path) -> None:
    for name in ("test", "Train", "val", "dev", "notes"):
        (tmp_path / "x" / name).mkdir(parents=True)
    expected = {"train": tmp_path / "x" / "Train", "dev": tmp_path / "x" / "dev", "test": tmp_path / "x" / "test"}
    splits = split_folders(tmp_path, ("X",))
    assert splits == expected
    assert list(splits) == list(expected)


@pytest.mark.parametrize(("task", "below"), [("imdb", ("neg", "pos")), ("race", ("middle",))])
@pytest.mark.parametrize(("name", "split"), [("test", "test"), ("train", "train"), ("Valid", "dev"), ("mine", "dev")])
def test_a_folder_that_is_one_split(tmp_path: Path, task: str, below: tuple[str, ...], name: str, split: str) -> None:
    for part in below:
        touch(tmp_path / "data" / name / part, "1.txt")
    folder = tmp_path / "data" / name
    splits = make_task(task).splits(folder)
    assert splits == {split: (folder,) if task == "imdb" else (folder / "middle" / "1.txt",)}
    if name != "mine":
        assert make_task(task).splits(tmp_path / "data") == splits


def test_lists_of_objects_are_found(tmp_path: Path) -> None:
    touch(tmp_path, "train.json", "dev.json.gz")
    for task in ("classification", "regression", "choice", "tagging", "sst-2"):
        assert shown(make_task(task).splits(tmp_path), tmp_path) == {"train": ["train.json"], "dev": ["dev.json.gz"]}


def test_words_of_a_name() -> None:
    assert split_in_name("squad-v1.1-Dev.json") == split_in_name("my_validation.json") == "dev"
    assert split_in_name("development.json") is None
