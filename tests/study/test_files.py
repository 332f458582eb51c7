"""The study files of the package: every cell at every size is planned down to its models and the data of its tasks."""

import re
import warnings
from copy import deepcopy
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

from bertree.data.prepare import prepare
from bertree.errors import BertreeWarning
from bertree.files.formats import Json, read_toml
from bertree.model.network import build as build_network
from bertree.model.presets import preset
from bertree.pretraining import build
from bertree.pretraining import recipe as recipes
from bertree.pretraining.sections import DataSettings
from bertree.study.definition import SIZES, Study
from bertree.study.load import bundled_studies, load_study
from bertree.study.plan import StudyPlan, plan_study
from bertree.study.report import published_table
from tests.support.shared import suite_has

# Tokens of the text, by size: as many as the largest batch needs, few enough that static masks repeat.
TOKENS = {"tiny": 3e6, "small": 3e6, "paper": 3e9}
FILES = {
    "{MNLI,QQP,QNLI,SST-2,CoLA,MRPC,RTE,WNLI,STS-B,imdb}/{train,dev}.tsv": "",
    "squad/{train,dev}-v1.1.json": "",
    "squad/{train,dev}-v2.0.json": "",
    "{race,hellaswag,snli}/{train,dev}.jsonl": "",
    "swag/{train,val}.csv": "",
    "conll2003/{train,valid,test}.txt": "",
    "sts/STSBenchmark/sts-test.csv": "genre\tfile\t2012\t1\t2.5\tA ship.\tA boat.\n",
    "STS-B/test.tsv": "sentence1\tsentence2\tscore\nA ship.\tA boat.\t2.5\n",
    "{glove.txt,sentences.txt,speed.txt,questions.jsonl}": "",
    "attribution.tsv": "code\ttext\nbooks\tA ship.\n",
    "links.tsv": "url\ttext\nhttps://a.example\tA ship.\n",
    "wikitext-2/test.raw": "",
    "lambada/lambada_test.jsonl": "",
}


def expand(pattern: str) -> list[str]:
    """Return the names that braces stand for."""
    match = re.search(r"\{([^}]*)\}", pattern)
    if match is None:
        return [pattern]
    return [name for part in match[1].split(",") for name in expand(pattern.replace(match[0], part, 1))]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    for pattern, text in FILES.items():
        for name in expand(pattern):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return folder


@pytest.fixture(scope="module")
def studies() -> dict[str, Study]:
    return {name: load_study(name) for name in bundled_studies()}


@pytest.fixture(scope="module")
def coded_store(tmp_path_factory: pytest.TempPathFactory, token_store: Path) -> Path:
    folder = tmp_path_factory.mktemp("codes")
    (folder / "books.jsonl").write_text('{"text": "A ship sailed.", "url": "a"}\n' * 9)
    prepare([folder], tokenizer=token_store / "tokenizer", out=folder / "store", control="file", given="url", workers=1)
    return folder / "store"


@cache
def read_once(path: Path) -> Json:
    return read_toml(path)


def plan(study: Study, size: str, store: Path, tasks: Path, monkeypatch: pytest.MonkeyPatch) -> StudyPlan:
    """Plan a study as if the text were long enough."""

    def stores(data: DataSettings) -> tuple[SimpleNamespace, SimpleNamespace]:
        train = SimpleNamespace(tokens=int(TOKENS[size] * data.share), documents=99, controls=(), has_given=False)
        return train, SimpleNamespace(documents=9)

    monkeypatch.setattr(build, "open_stores", stores)
    monkeypatch.setattr(recipes, "read_toml", lambda path: deepcopy(read_once(path)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BertreeWarning)
        seeds = 2 if any(step.do == "ensemble" for step in study.steps) else 1
        return plan_study(study, size, store=store, tasks=tasks, seeds=seeds)


@pytest.mark.parametrize("size", suite_has(("tiny",), SIZES))
def test_every_cell_of_every_study_can_be_planned_and_built(
    size: str,
    studies: dict[str, Study],
    token_store: Path,
    coded_store: Path,
    tasks: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Recipes, settings, files of tasks, masks; and of the smallest size the networks, with one of their layers."""
    built = set()
    for name, study in studies.items():
        store = coded_store if name == "ctrl-styles" else token_store
        planned = plan(study, size, store, tasks, monkeypatch)
        assert {step.cell for step in planned.steps} == {cell.name for cell in study.running()}, name
        for step in planned.distinct:
            if step.step.do == "pretrain" and size == "tiny":
                recipe = recipes.load(step.recipe, step.settings)
                axes = recipe.axes | {"layers": 1, "vocab_size": 64, "cutoffs": ""}
                a = preset(str(recipe.model["preset"])).architecture.with_values(axes)
                if repr(a) not in built:
                    built.add(repr(a))
                    build_network(a, {"mask": 0})


def test_every_study_shows_its_published_figures_and_claims_before_it_is_run(studies: dict[str, Study]) -> None:
    for study in studies.values():
        text = published_table(study)
        names = [cell.name.replace("|", r"\|") for cell in study.cells if cell.published]
        assert all(f"| {name} |" in text for name in names), study.name
        assert all(pattern.claim in text for pattern in study.patterns), study.name
        assert "resolved" not in text, "nothing was run"


def test_every_study_cites_a_paper_and_names_what_it_computes(studies: dict[str, Study]) -> None:
    for name, study in studies.items():
        assert re.search(r"\(\d{4}\)", study.paper), f"{name}: authors (year), title, table"
        assert set(study.sizes) == set(SIZES), name
        assert study.patterns, name
        figures = {column.name for column in study.columns if column.figure or column.mean or column.ratio}
        assert {pattern.column for pattern in study.patterns} <= figures, f"{name}: a pattern that nothing decides"
        running = {cell.name for cell in study.running()}
        assert {cell for pattern in study.patterns for cell in (pattern.better, pattern.worse)} <= running, name
        assert study.second_source or not any(cell.also_published for cell in study.cells), name


def test_the_table_of_studies_in_the_docs_is_complete(studies: dict[str, Study]) -> None:
    rows = [f"| `{name}` | {study.varied} | {study.paper} |" for name, study in studies.items()]
    table = "\n".join(["| study | varied | published |", "|---|---|---|", *rows])
    assert table in (Path(__file__).parents[2] / "docs" / "studies.md").read_text(), f"it should be:\n{table}"
