"""Texts of other people never become markup: no page has an element or an attribute that came out of its data.

Every page is rendered twice: with hostile text in every place where a text of the data can stand, and with harmless
text of the same length. Both must have the same elements, attributes and classes.
"""

import ast
import json
import re
import tomllib
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import bertree
from bertree.embeddings import correlation
from bertree.embeddings.correlation import EncoderScores, evaluation_page
from bertree.embeddings.sts import PairPart, PairSet
from bertree.files.formats import Json
from bertree.finetuning.page import finetuning_page
from bertree.inference.load import Run
from bertree.report.calibration import calibrate
from bertree.report.comparison import (
    AnsweredExample,
    Comparison,
    Disagreement,
    ModelCosts,
    PublishedRow,
    ScoreDifference,
    Speed,
)
from bertree.report.comparison_page import comparison_page
from bertree.report.run_page import run_page
from bertree.report.svg import group, standalone_picture
from bertree.report.svg import text as svg_text
from bertree.tasks.registry import make_task
from tests.support.pages import Page
from tests.support.shared import suite_has

HOSTILE = (
    "<script>alert(1)</script>",
    "</td></tr></table></main><img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)" \' onload=\'alert(1)',
    "</style><style>*{display:none}</style>",
    "</title></svg></text>]]><![CDATA[<g onclick='x'/>",
    "<!--<b>--><?php x ?>",
    "{{ 7 * 7 }}{% include 'base.html.j2' %}{# x #}",
    "&lt;b&gt;&#60;i&#62;&quot; onload=&quot;",
    "javascript:alert(1)",
    "a\x00\x08\x0b\x1b[31m\x7f\x85\ud800\ufffe\u202e<b>",
)
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
SOURCE = Path(bertree.__file__).parent
# Modules that may make markup; text/ cannot import report/.
ALLOWED = {"report/html.py", "report/svg.py", "result_table.py"}


def harmless(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9:]", "x", text)


def file_name(text: str) -> str:
    return re.sub("[/\x00\ud800]", "_", text)


# The pages, with one text in every place


def run_folder(text: str, place: Path) -> Path:
    folder = place / file_name(text)
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[Json] = []
    for step in (1, 2, 3):
        mask = {"gold": text, "predicted": text if step > 1 else "other", "probability": 0.5}
        rows += [
            {"kind": "train", "step": step, "loss": 1.0 / step, text: 0.5 / step, "lr": 0.1, "seconds": step},
            {"kind": "eval", "step": step, "loss": 1.0 / step, text: 0.5, f"{text}_score": 0.5, "tokens": 10 * step},
            {"kind": "sample", "step": step, "text": f"{text} [MASK] {text}", "masks": [mask]},
            {"kind": "event", "step": step, "text": f"phase {step}{text}"},
        ]
    rows.append({"kind": "event", "step": 3, "text": f"resumed, skipped {text}"})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "environment.json").write_text(json.dumps({text: text, "list": [text]}))
    name = json.dumps(CONTROL.sub("?", text), ensure_ascii=False)
    (folder / "recipe.toml").write_text(f"name = {name}\nnote = {name}\n[model]\nstart = {name}\n")
    return folder


def compared(text: str) -> Comparison:
    speeds = tuple(
        Speed(
            device=device,
            processor=text,
            threads=2,
            precision=text,
            latency_ms=6.0,
            latency_p90_ms=9.0,
            text_latency_ms=6.1,
            text_latency_p90_ms=9.2,
            timed_texts=50,
            texts_per_s=40.0,
            tokens_per_s=1000.0,
            passes=5,
        )
        for device in ("cpu", text)
    )
    sizes = {"embeddings": 20, "encoder": 70, "head": 10, "weight_bytes": 400, "on_disk": True, "tokens_a_text": 25.0}
    models = [ModelCosts(name=f"{text}{n}", parameters=100 + n, speeds=speeds, **sizes) for n in range(2)]
    example = AnsweredExample((text, text), text, (text, text), (0.9, None), 1)
    return Comparison(
        tuple(models),
        {text: (0.5, 0.4), f"{text} loss": (2.0, None)},
        text,
        published=(PublishedRow(text, {text: 90.0}, text, text, text, text),),
        calibration=(calibrate(np.array([0.9, 0.7]), np.array([1.0, 0.0])), None),
        differences=(ScoreDifference(text, -0.1, (-0.2, 0.1), 0.4),),
        disagreements=(Disagreement({text: 3}, (example,)),),
    )


def pretraining(text: str, place: Path) -> str:
    return run_page(run_folder(text, place))


def distillation(text: str, place: Path) -> str:
    folder = run_folder(text, place)
    (folder / "comparison.json").write_text(json.dumps(compared(text.replace("\ud800", "x")).as_json()))
    return run_page(folder)


def result(text: str, place: Path) -> str:
    """In a notebook."""
    folder = run_folder(text, place)
    (folder / "metrics.json").write_text(json.dumps({text: 0.5}))
    return Run(folder)._repr_html_()


def comparison(text: str, place: Path) -> str:
    return comparison_page(compared(text))


def comparison_of_three(text: str, place: Path) -> str:
    two = compared(text)
    return comparison_page(Comparison((*two.models, two.models[0]), {text: (0.5, 0.4, None)}, text))


def evaluation(text: str, place: Path) -> str:
    draw = np.random.default_rng(0)
    texts = (text,) * 20
    parts = tuple(
        PairPart(name=f"{text}{n}", file=text, first=texts, second=texts, gold=draw.random(20), lines=tuple(range(20)))
        for n in range(2)
    )
    sets = [PairSet(text, parts), PairSet(f"{text}.", parts[:1])]

    def sides(pairs: PairSet) -> list[Any]:
        return [tuple(draw.standard_normal((20, 4)).astype(np.float32) for _ in range(2)) for _ in pairs.parts]

    scored = tuple(correlation.score_set(pairs, sides(pairs)) for pairs in sets)
    return evaluation_page(text, sets, [EncoderScores(f"{text}{n}", 4, scored, 50.0 + n) for n in range(2)])


def finetuned(task: Any, lines: list[Json], text: str, place: Path) -> str:
    """With seeds, a teacher and two splits."""
    folder = run_folder(text, place)
    seed = file_name(text)
    (folder / f"seed-{seed}").mkdir(exist_ok=True)
    for name in ("metrics.jsonl", "report.html"):
        (folder / f"seed-{seed}" / name).write_text((folder / "metrics.jsonl").read_text())
    seeds: list[Json] = [{"seed": seed, task.metric: 0.5, text: 0.25, "best_step": 1, "diverged": False}]
    seeds.append({"seed": f"2{seed}", task.metric: None, "diverged": text})
    metrics = {task.metric: 0.5, text: 0.25, "seeds": seeds, "best_seed": seed, "mean": 0.5, "model": text}
    metrics |= {f"accuracy-{text}": 0.5, "cut": {text: {"examples": 1, "tokens": 2}}}
    metrics["distillation"] = {"teacher_model": text, "kept": 0.9, "teacher": {task.metric: 0.5}, "kind": text}
    legal = text.replace("\ud800", "x")
    example = {"texts": [legal], "gold": legal, "classes": [legal, "b"], "shares": [[0.9], [0.1]]}
    effect = {"temperatures": [1.0], "entropy": [0.5], "calibration_error": [0.1], "answers": 1, "examples": [example]}
    (folder / "temperature.json").write_text(json.dumps(effect))
    return finetuning_page(folder, task, metrics, {f"dev{text}": lines, "test": [{"predicted": text}]})


def classes(text: str, place: Path) -> str:
    lines = [{"text": text, "pair": text, "gold": text, "predicted": "b", "score": 0.9}]
    lines += [{"text": text * 40, "gold": "b", "predicted": text * 3, "score": 0.8}]
    return finetuned(make_task("classification").with_labels([text, "b"]), lines, text, place)


def many_classes(text: str, place: Path) -> str:
    labels = [f"{text}{n}" for n in range(40)]
    lines = [{"text": text, "gold": labels[n], "predicted": labels[n - 1], "score": 0.9} for n in range(40)]
    return finetuned(make_task("classification").with_labels(labels), lines, text, place)


def regression(text: str, place: Path) -> str:
    lines = [{"text": text, "pair": text, "gold": 1.0, "predicted": 2.0 + n, "score": 2.0} for n in range(3)]
    return finetuned(make_task("sts-b"), lines, text, place)


def entities(text: str, place: Path) -> str:
    entity = {"type": text, "text": text, "start": 0, "end": len(text), "score": 0.5}
    words = {"text": text, "words": [text], "score": 0.5}
    lines = [words | {"gold": ["O"], "predicted": [f"B-{text}"], "entities": [entity]}]
    lines += [words | {"gold": [f"B-{text}2"], "predicted": [f"B-{text}"], "entities": [entity]}]
    return finetuned(make_task("ner").with_labels(["O", f"B-{text}"]), lines, text, place)


def tags(text: str, place: Path) -> str:
    lines = [{"text": text, "words": [text], "score": 0.5, "gold": [text], "predicted": ["x"]}]
    return finetuned(make_task("tagging").with_labels([text, "x"]), lines, text, place)


def spans(text: str, place: Path) -> str:
    line = {"id": text, "question": text, "context": f"{text} {text}", "gold": [text], "score": 0.5, "null_odds": 0.1}
    lines = [line | {"predicted": f"{text} other", "start": 3, "end": 9}, line | {"predicted": ""}]
    return finetuned(make_task("squad2"), lines, text, place)


def choices(text: str, place: Path) -> str:
    line = {"context": text, "question": text, "options": [text, text], "probabilities": [0.4, 0.6]}
    return finetuned(make_task("race"), [line | {"gold": 0, "predicted": 1, "score": 0.6}], text, place)


def vectors(text: str, place: Path) -> str:
    task = SimpleNamespace(name=text, metric="accuracy", regression=False, labels=(), head="vector")
    ranked = {"text": text, "gold": text, "predicted": f"{text}x", "score": 0.5, "rank": 2}
    nearer = {"text": text, "pair": text, "gold": 0, "predicted": 1, "negatives": [text]}
    return finetuned(task, [ranked, nearer], text, place)


PAGES: dict[str, Callable[[str, Path], str]] = {
    page.__name__: page
    for page in (
        *(pretraining, distillation, result, comparison, comparison_of_three, evaluation),
        *(classes, many_classes, regression, entities, tags, spans, choices, vectors),
    )
}


CASES = [(name, number) for number in range(len(HOSTILE)) for name in PAGES]


@pytest.mark.parametrize(("name", "number"), suite_has(CASES[::3], CASES))
def test_no_element_and_no_attribute_comes_from_data(name: str, number: int, tmp_path: Path) -> None:
    text = HOSTILE[number]
    page = Page(PAGES[name](text, tmp_path / "hostile"))
    twin = Page(PAGES[name](harmless(text), tmp_path / "harmless"))
    assert page.skeleton == twin.skeleton
    assert page.seen.count("style") <= 1
    assert page.seen.count("script") <= 1
    assert not CONTROL.search(page.source)
    page.source.encode("utf-8")
    shown = re.sub(r"\s+", " ", CONTROL.sub("\ufffd", text))
    assert shown[:12] in page.text  # the reader sees just what the data hold


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_picture_of_its_own_is_as_safe(text: str, tmp_path: Path) -> None:
    drawn = [
        standalone_picture(name, 100, [group("mark", svg_text(8, 20, name)), svg_text(8, 40, f"{name}2", "key", "end")])
        for name in (text, harmless(text))
    ]
    assert Page(drawn[0]).skeleton == Page(drawn[1]).skeleton
    assert not CONTROL.search(drawn[0])


# The source


def python_files() -> list[tuple[str, str]]:
    return [(str(path.relative_to(SOURCE)), path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py")]


def test_markup_is_made_in_three_modules_only() -> None:
    for name, text in python_files():
        match = re.search(r"Markup\(|__html__|(from|import) (html|markupsafe)\b.*\bescape", text)
        assert (match is not None) == (name in ALLOWED), name


def test_no_module_writes_tags() -> None:
    tag = re.compile(r"</(?!s>|w>)[a-z]+[0-9]?>|<[a-z]+ [a-z-]+=")  # "</s>" is a token, "</w>" ends one
    for name, text in python_files():
        if name in ALLOWED or not re.search(r"</|<[a-z]", text):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not tag.search(node.value), f"{name}, line {node.lineno}: {node.value[:60]!r}"


def test_templates_never_switch_escaping_off() -> None:
    for path in (SOURCE / "report" / "templates").iterdir():
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\|\s*safe\b|autoescape|\|\s*forceescape", text), path.name
        for attribute in re.findall(r"=\s*\{\{", text):
            pytest.fail(f"{path.name}: an attribute without quotes ({attribute})")


def test_templates_and_assets_are_in_the_package() -> None:
    project = tomllib.loads((SOURCE.parent.parent / "pyproject.toml").read_text())
    globs = project["tool"]["setuptools"]["package-data"]["bertree"]
    files = [path for folder in ("templates", "assets") for path in (SOURCE / "report" / folder).iterdir()]
    assert len(files) > 8
    for path in files:
        name = str(path.relative_to(SOURCE))
        assert any(fnmatch(name, glob) for glob in globs), name
