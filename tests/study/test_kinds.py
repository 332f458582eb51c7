"""Steps of every kind: what they compute, what they take from each other, and what is kept."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from bertree.errors import UserError
from bertree.finetuning.linear_head import fit_classifier
from bertree.study import measures
from bertree.study.execute import run_study
from bertree.study.load import load_study
from bertree.study.measures import effective_length
from bertree.study.steps import attribution
from tests.support.language_models import CODES, language_model

HEAD = """
title = "Kinds"
question = "Does every kind of step run?"
paper = "Nobody (2026), Table 1"
varied = "kind"
columns = [{name = "score", figure = "%s"}]

[sizes.tiny]
suffix = "-tiny"
seeds = 1
"""
SST = 'task = "sst-2", data = "SST-2", set = ["epochs=1"]'


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "SST-2").mkdir()
    rows = [f"{word} film\t{label}" for word, label in (("good", 1), ("bad", 0))] * 8
    for split in ("train", "dev"):
        (folder / "SST-2" / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    texts = [f"A {word} ship sailed to the {place}." for word in ("red", "green", "old") for place in ("sea", "town")]
    (folder / "texts.txt").write_text("\n".join(texts) + "\n")
    pairs = [(text, other, number % 6) for number, (text, other) in enumerate(zip(texts, texts[::-1], strict=True))]
    rows = [f"{text}\t{other}\t{score}" for text, other, score in pairs]
    (folder / "pairs.tsv").write_text("\n".join(["text\tpair\tscore", *rows]) + "\n")
    rows = [f"news\twire\t2012\t1\t{score}\t{text}\t{other}" for text, other, score in pairs]
    (folder / "sts-test.csv").write_text("\n".join(rows) + "\n")
    words = ["a", "red", "green", "old", "ship", "sailed", "to", "the", "sea", "town"]
    (folder / "glove.txt").write_text("".join(f"{word} {number} 1 2\n" for number, word in enumerate(words)))
    return folder


def run(
    tmp_path: Path, store: Path, tasks: Path, steps: list[str], cells: str = "", **options: object
) -> dict[str, dict[str, float]]:
    """Run a study with these steps; return the figures of each step of the last cell and seed."""
    path = tmp_path / "kinds.toml"
    key = steps[-1].split('name = "')[-1].partition('"')[0] if "name = " in steps[-1] else steps[-1].split('"')[1]
    tables = ", ".join("{" + step + "}" for step in steps)
    text = f"steps = [{tables}]\n" + HEAD % f"{key}.x"
    path.write_text(text + (cells or '[[cells]]\nname = "one"\n'))
    results = run_study(path, store=store, tasks=tasks, out=tmp_path / "out", **options)
    assert [row.get("message") for row in results.rows] == [None] * len(results.rows)
    return {row["step"]: row["figures"] for row in results.rows}


FEW = 'set = ["phases=[{steps=2, max_length=32, batch_tokens=256}]", "schedule.warmup=1"]'
NARROW = '"model.layers=1", "model.width=32", "model.heads=2", "model.ffn_width=64", "model.embedding_width=32"'
PRETRAIN = f'do = "pretrain", recipe = "bert-base", {FEW}'


@pytest.mark.train
def test_a_task_is_distilled_from_a_fine_tuned_teacher_and_fine_tuning_goes_on_from_another_task(
    tmp_path: Path, token_store: Path, tasks: Path
) -> None:
    figures = run(
        tmp_path,
        token_store,
        tasks,
        [
            PRETRAIN,
            f'do = "finetune", name = "teacher", {SST}',
            f'do = "finetune", name = "again", model = "teacher", {SST}',
            f'do = "distill", name = "taught", model = "teacher", student = "bilstm", {SST}',
            'do = "evaluate", name = "scored", model = "teacher", task = "sst-2", data = "SST-2"',
        ],
    )
    assert figures["scored"]["accuracy"] == figures["teacher"]["accuracy"]
    assert "accuracy" in figures["taught"]
    kept = {path.parents[1].name.partition("-")[0] for path in (tmp_path / "out" / "steps").glob("*/run/model")}
    assert kept == {"pretrain", "teacher"}, "of fine-tuned models only those that others need"


@pytest.mark.train
def test_time_pairs_sts_info_and_plan(tmp_path: Path, token_store: Path, tasks: Path) -> None:
    texts = 'data = "texts.txt", rounds = 1'
    figures = run(
        tmp_path,
        token_store,
        tasks,
        [
            'do = "time", name = "training", measure = "training", recipe = "bert-base", rounds = 1, '
            'set = ["phases.0.batch_tokens=256"]',
            *(
                f'do = "time", name = "{reading}", measure = "inference", model = "bert-tiny", reading = "{reading}", '
                f"sort = false, {texts}"
                for reading in ("one", "packed", "padded")
            ),
            f'do = "time", name = "words", measure = "inference", glove = "glove.txt", {texts}',
            'do = "sts", name = "glove", glove = "glove.txt", data = "pairs.tsv"',
            'do = "sts", name = "benchmark", glove = "glove.txt", data = "sts-test.csv"',
            'do = "pairs", model = "bert-tiny", data = "texts.txt"',
            'do = "info", model = "bert-base"',
            'do = "info", name = "recipe", recipe = "albert-base", set = ["model.layers=3"]',
            'do = "plan", model = "gpt2", set = ["devices=64"]',
        ],
    )
    assert figures["training"]["tokens_per_s"] > 0
    assert {figures[name]["texts"] for name in ("one", "packed", "padded", "words")} == {6.0}
    assert figures["pairs"]["pairs"] == figures["pairs"]["timed_pairs"] == 15
    assert round(figures["info"]["million_parameters"]) == 109
    assert figures["info"]["batch_512"] == 55, "as `bertree info` has it for a card of 12 GB"
    assert figures["info"]["training_bytes_65536"] > figures["info"]["training_bytes_1024"]
    assert figures["plan"]["paper0_gb"] > figures["plan"]["paper3_gb"]
    assert "average" in figures["glove"]
    assert figures["benchmark"]["sts-b"] == figures["glove"]["average"], "the test split has the name of the set"


@pytest.mark.train
def test_an_untrained_objective_is_probed_and_marked(
    tmp_path: Path, token_store: Path, tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measures, "fit_classifier", partial(fit_classifier, strength=1.0))  # it is chosen otherwise
    figures = run(
        tmp_path,
        token_store,
        tasks,
        [
            PRETRAIN.replace('"schedule', f'{NARROW}, "schedule'),
            'do = "evaluate", objectives = ["mlm", "nsp", "sop"], probe = true',
        ],
    )["evaluate"]
    assert "nsp_probe" not in figures, "bert-base is trained with it"
    assert figures["sop_probe"] == 1.0
    assert 0 <= figures["sop_accuracy"] <= 1


@pytest.mark.train
def test_an_ensemble_joins_the_models_of_all_seeds(tmp_path: Path, token_store: Path, tasks: Path) -> None:
    tuned = f'do = "finetune", name = "sst2", model = "bert-tiny", {SST}'
    joined = 'do = "ensemble", model = "sst2", task = "sst-2", data = "SST-2", seeded = false'
    figures = run(tmp_path, token_store, tasks, [tuned, joined], seeds=2)
    assert figures["ensemble"]["models"] == 2
    assert 0 <= figures["ensemble"]["accuracy"] <= 1


@pytest.mark.train
def test_left_to_right_models_predict_texts(tmp_path: Path, token_store: Path, tasks: Path) -> None:
    figures = run(
        tmp_path,
        token_store,
        tasks,
        [
            f'do = "pretrain", recipe = "gpt1", {FEW}',
            'do = "evaluate", name = "text", task = "perplexity", data = "texts.txt", set = ["context=16"]',
            'do = "evaluate", name = "lambada", task = "lambada", data = "texts.txt"',
            'do = "time", measure = "perplexity", data = "texts.txt", rounds = 1',
        ],
    )
    assert figures["text"]["word_perplexity"] > 1
    assert figures["lambada"]["filtered_accuracy"] >= figures["lambada"]["accuracy"]
    assert figures["time"]["tokens_per_s"] > 0


def test_the_effective_length_ends_where_a_longer_context_no_longer_helps() -> None:
    alone = np.array([[[3.0, 1.0], [2.0, 1.0], [1.999, 0.5]]])  # a model, contexts of 4, 8 and 12, two tokens
    assert effective_length(alone, 0, [4, 8, 12], 100) == 12
    assert effective_length(alone, 0, [4, 8, 12], 50) == 8, "of the harder token"
    both = np.concatenate([alone, np.full((1, 3, 2), 0.4)])
    assert effective_length(both, 0, [4, 8, 12], 100) == 4, "another model is better with the shortest context"


@pytest.mark.train
def test_the_context_of_a_model_is_relative_to_those_of_other_cells(
    tmp_path: Path, token_store: Path, tasks: Path
) -> None:
    cells = """[[cells]]
name = "short"
members = ["long"]
[[cells]]
name = "long"
members = ["short"]
set = {pretrain = ["model.layers=1"]}
"""
    steps = [f'do = "pretrain", recipe = "gpt1", {FEW}']
    steps += ['do = "context", data = "texts.txt", set = ["step=4", "longest=8", "tokens=6"]']
    figures = run(tmp_path, token_store, tasks, steps, cells)
    assert figures["context"]["tokens"] == 6
    assert figures["context"]["length_100"] in (4, 8)
    results = run_study(tmp_path / "kinds.toml", store=token_store, tasks=tasks, out=tmp_path / "out")
    assert len({row["folder"] for row in results.rows if row["step"] == "context"}) == 2, "each has a length of its own"


def test_codes_and_addresses_are_told_from_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = language_model("ctrl", CODES)
    monkeypatch.setattr(type(model), "takes_given", True)
    rows = [{"code": CODES[number % 2], "text": text} for number, text in enumerate(("red", "a stone", "the lamp"))]
    assert attribution(model, rows)["texts"] == 3
    figures = attribution(model, [{"url": f"garden {number}", **row} for number, row in enumerate(rows)])
    assert 0 <= figures["accuracy"] <= figures["before_another"] <= 1


@pytest.mark.train
def test_the_first_seed_chooses_a_rate_for_all(tmp_path: Path, token_store: Path, tasks: Path) -> None:
    choose = 'choose = ["optim.lr=1e-9", "optim.lr=1e-2"], by = "-loss"'
    run(tmp_path, token_store, tasks, [f"{PRETRAIN}, {choose}"], seeds=2)
    results = run_study(tmp_path / "kinds.toml", store=token_store, tasks=tasks, out=tmp_path / "out", seeds=2)
    first, second = results.rows
    best = min(first["trials"], key=first["trials"].get)
    assert first["chosen"] == second["chosen"] == best
    assert (len(first["trials"]), list(second["trials"])) == (2, [best])
    assert f"{best}, chosen by loss" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ('do = "time", recipe = "bert-base"', "measure: is missing"),
        ('do = "evaluate", model = "bert-tiny"', "objectives: is missing"),
        ('do = "finetune", task = "sst-2", data = "SST-2"', "no step before it trains a model"),
        (f'{PRETRAIN}, choose = ["lr=1"]', "by: is missing"),
    ],
)
def test_a_step_without_what_it_needs_is_refused(tmp_path: Path, step: str, message: str) -> None:
    path = tmp_path / "kinds.toml"
    kind = step.split('"')[1]
    path.write_text(f"steps = [{{{step}}}]\n" + HEAD % f"{kind}.x" + '[[cells]]\nname = "one"\n')
    with pytest.raises(UserError, match=message):
        load_study(path)
