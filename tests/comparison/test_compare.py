"""Models beside one another: exact counts and bytes, turns that are taken, ratios by hand, and what people see."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bertree.comparison import timing
from bertree.comparison.measure import compare_all, counts, training_rates, weight_bytes
from bertree.comparison.timing import SENTENCES, TimedModel
from bertree.errors import UserError
from bertree.finetuning.page import finetuning_page
from bertree.inference.load import Model, load, make_model, random_model
from bertree.interop import folder
from bertree.interop.contents import Contents
from bertree.model import cost
from bertree.model.architecture import Architecture, Transformer
from bertree.model.network import build
from bertree.model.presets import preset
from bertree.model.readout import Readout
from bertree.report.comparison import Comparison, ModelCosts, Speed, read_comparison, times, verdict
from bertree.report.comparison_page import comparison_of_run, comparison_page, comparison_rows
from bertree.report.run_page import run_page
from bertree.run_folder import COMPARISON
from bertree.tasks.registry import make_task
from bertree.tasks.task import Task
from bertree.text.tokenizer import Tokenizer
from tests.support import learnable
from tests.support.command import Command
from tests.support.pages import Page
from tests.support.shared import suite_has

TEXTS = ["the boat", "a happy tree on the road", "lamp", "the river and the garden by the window of stone"]


@pytest.fixture(scope="module")
def words() -> Tokenizer:
    return learnable.tokenizer()


def compare(
    teacher: Model | TimedModel,
    student: Model | TimedModel,
    texts: Sequence[Any] = (),
    *,
    task: Task[Any] | None = None,
    folders: tuple[Path | None, Path | None] = (None, None),
    scores: Mapping[str, tuple[float, float]] | None = None,
    seconds: float = 20.0,
    devices: Sequence[str] | None = None,
    measured_on: str = "",
) -> Comparison:
    subjects = [
        model if isinstance(model, TimedModel) else TimedModel(name, model, folder, task)
        for name, model, folder in (("teacher", teacher, folders[0]), ("student", student, folders[1]))
    ]
    return compare_all(subjects, texts, scores=scores, seconds=seconds, devices=devices, measured_on=measured_on)


def point(words: Tokenizer, layers: int, **axes: object) -> Architecture:
    values = {"vocab_size": words.size, "layers": layers, "width": 32, "heads": 2, "ffn_width": 64, "max_positions": 64}
    return Transformer().with_values(values | axes)


def judge(path: Path, words: Tokenizer, layers: int, says: int) -> Path:
    """A folder with a classifier that always says the same."""
    a = point(words, layers)
    network = build(a, {"sequence": 2})
    with torch.no_grad():
        network.heads["sequence"].out.weight.zero_()
        network.heads["sequence"].out.bias.copy_(torch.eye(2)[says])
    folder.write(Contents(a, network, words, labels=["good", "bad"]), path)
    return path


class Slow:
    """A clock that only models move: each by its own seconds a forward pass."""

    def __init__(self, **seconds: float) -> None:
        self.now, self.log = 0.0, list[str]()
        self.seconds = seconds

    def __call__(self) -> float:
        return self.now

    def watch(self, name: str, model: Model) -> Model:
        def passed(*_: Any) -> None:
            self.now += self.seconds[name]
            self.log.append(name)

        model.network.encoder.register_forward_hook(passed)
        return model


def speed(device: str = "cpu", **changes: Any) -> Speed:
    values: dict[str, Any] = {
        "device": device, "processor": "a <chip>", "threads": 2, "precision": "float32", "latency_ms": 60.0,
        "latency_p90_ms": 90.0, "text_latency_ms": 61.0, "text_latency_p90_ms": 92.0, "timed_texts": 50,
        "texts_per_s": 40.0, "tokens_per_s": 1000.0, "passes": 5,
    }  # fmt: skip
    return Speed(**(values | changes))


LARGE = ModelCosts(
    name="teacher", parameters=110_000_000, embeddings=24_000_000, encoder=85_000_000, head=1_000_000,
    weight_bytes=440_000_000, on_disk=True, tokens_a_text=25.0, speeds=(speed(),),
)  # fmt: skip
SMALL = replace(
    LARGE, name="student", parameters=16_500_000, weight_bytes=66_000_000, encoder=10_000_000,
    speeds=(speed(latency_ms=6.6, latency_p90_ms=9.0, texts_per_s=350.0),),
)  # fmt: skip
FOUND = Comparison((LARGE, SMALL), {"accuracy": (0.91, 0.881), "perplexity": (12.5, 17.25)}, "872 examples of sst-2")


# Figures


@pytest.mark.parametrize("name", ["bert-tiny", "albert-base", "distilbert-base", "roberta-base"])
def test_counts_are_those_of_the_architecture(name: str) -> None:
    a = preset(name).architecture
    with torch.device("meta"):
        network = build(a, {"mask": 0, "sequence": 3})
    exact = cost.parameters(a)
    encoder = exact.embeddings + exact.encoder
    assert counts(network) == (exact.total, exact.embeddings, exact.encoder, exact.pooler), "as in `info`"
    above = 3 * a.width + 3 + a.width * (a.width + 1)  # the pooler, or the dense layer of the family's own head
    assert counts(network, "sequence") == (encoder + above, exact.embeddings, exact.encoder, above)


def test_a_comparison_shows_a_row_for_each_model() -> None:
    title, heads, *rows = repr(FOUND).splitlines()
    assert "872 examples of sst-2" in title
    assert heads.split()[:3] == ["model", "parameters", "MB"]
    assert len(rows) == 2
    assert f"{SMALL.parameters:,}" in rows[1].split()
    assert heads.split()[-2] == "accuracy"
    assert rows[1].split()[-2] == "0.881"
    page = FOUND._repr_html_()
    assert page.count("<tr>") == 3
    assert "<th>accuracy</th>" in page


def test_what_stands_between_encoder_and_head_is_counted(words: Tokenizer) -> None:
    a = point(words, 1)
    network = build(a, {"token": 5, "span": 2}, Readout(layers="last", lstm=8, crf=True))
    above = sum(
        p.numel() for name, p in network.named_parameters() if name.startswith(("features.", "heads.token", "crf."))
    )
    assert network.crf is not None
    assert counts(network, "token")[3] == above > 5 * 17
    everything = sum(p.numel() for p in network.parameters())
    unused = sum(p.numel() for p in network.heads["span"].parameters()) + cost.parameters(a).pooler
    assert counts(network, "token")[0] == everything - unused


def test_bytes_are_those_of_the_files(words: Tokenizer, tmp_path: Path) -> None:
    path = learnable.model(tmp_path / "one", words)
    model = load(path)
    size = (path / "model.safetensors").stat().st_size
    assert weight_bytes(TimedModel("one", model, path)) == (size, True)
    (path / "model.safetensors").rename(path / "model-00001-of-00002.safetensors")
    (path / "model-00002-of-00002.safetensors").write_bytes(b"x" * 77)
    assert weight_bytes(TimedModel("one", model, path)) == (size + 77, True)
    total = sum(parameter.numel() for parameter in model.network.parameters())
    assert weight_bytes(TimedModel("one", model)) == (4 * total, False)
    assert weight_bytes(TimedModel("one", model, tmp_path / "a preset")) == (4 * total, False)


def model(words: Tokenizer, layers: int = 1) -> Model:
    model = random_model(point(words, layers), {})
    model.tokenizer = words
    return model


@pytest.mark.slow
def test_models_take_turns_and_medians_are_theirs(words: Tokenizer) -> None:
    clock = Slow(a=0.010, b=0.002)
    subjects = [TimedModel(name, clock.watch(name, model(words))) for name in ("a", "b")]
    comparisons = compare_all(subjects, TEXTS, seconds=2.0, devices=["cpu"], clock=clock)
    turns = [name for place, name in enumerate(clock.log) if place == 0 or clock.log[place - 1] != name]
    assert turns == ["a", "b"] * (len(turns) // 2)
    assert len(turns) >= 2 * (2 + timing.LEAST_TURNS + timing.LEAST_PASSES)
    longest = max(
        len(part) for part in "".join(name for name in clock.log).replace("ab", "a b").replace("ba", "b a").split()
    )
    assert (
        longest <= timing.MOST_TOKENS["cpu"] // 1024 + 1 + timing.TURN + timing.WARM_UP
    )  # nobody has all its turns at once
    for figures, milliseconds in zip(comparisons.models, (10.0, 2.0), strict=True):
        measure_speeds = figures.speed("cpu")
        assert measure_speeds.latency_ms == pytest.approx(milliseconds)
        assert measure_speeds.text_latency_p90_ms == pytest.approx(milliseconds)
        assert measure_speeds.timed_texts >= 4
        assert measure_speeds.threads == 1
    assert comparisons.times_faster("cpu") == pytest.approx(5.0)
    assert comparisons.times_more_texts("cpu") == pytest.approx(5.0)


def test_training_steps_are_timed_in_turns_and_change_nothing(words: Tokenizer) -> None:
    clock = Slow(a=0.010, b=0.002)
    models = [model(words, 2), model(words, 1)]
    subjects = [TimedModel(name, small) for name, small in zip("ab", models, strict=True)]
    before = [{name: tensor.clone() for name, tensor in small.network.state_dict().items()} for small in models]
    comparisons = compare_all(subjects, TEXTS, seconds=0.2, devices=["cpu"], training=True)
    for small, weights in zip(models, before, strict=True):
        assert all(torch.equal(tensor, weights[name]) for name, tensor in small.network.state_dict().items())
        assert not small.network.training
        assert all(parameter.grad is None for parameter in small.network.parameters())
    subjects = [TimedModel(name, clock.watch(name, small)) for name, small in zip("ab", models, strict=True)]
    rates = training_rates(subjects, torch.device("cpu"), 0.05, clock)
    assert clock.log[:6] == ["a", "b"] * 3
    assert rates == pytest.approx([512 / 0.010, 512 / 0.002], rel=0.1)
    ratio = comparisons.times_faster_training("cpu")
    assert ratio is not None
    assert comparisons.as_json()["against_the_first"][0]["times_faster_training_cpu"] == ratio
    assert "CPU, training, tokens/s" in {row.name for row in comparison_rows(comparisons)}
    assert "CPU, training, tokens/s" not in {row.name for row in comparison_rows(FOUND)}


@pytest.mark.slow
def test_time_is_kept_by_slow_models_and_not_wasted_by_fast_ones(
    words: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "MOST_TOKENS", {"cpu": 2048})
    monkeypatch.setattr(timing, "MOST_TEXTS", 80)
    clock = Slow(a=0.8, b=0.4)
    subjects = [TimedModel(name, clock.watch(name, model(words))) for name in ("a", "b")]
    comparisons = compare_all(subjects, TEXTS, seconds=20.0, devices=["cpu"], clock=clock)
    assert 10.0 < clock.now < 26.0
    assert comparisons.teacher.speed("cpu").timed_texts >= 4
    clock = Slow(a=1e-5, b=1e-5)
    subjects = [TimedModel(name, clock.watch(name, model(words))) for name in ("a", "b")]
    compare_all(subjects, TEXTS, seconds=20.0, devices=["cpu"], clock=clock)
    assert len(clock.log) <= 2 * (
        timing.MOST_TEXTS // timing.TURN * (timing.TURN + 1) + timing.WARM_UP + 1 + 3 * timing.MOST_PASSES
    )


@pytest.mark.slow
def test_a_wave_of_noise_falls_on_both(words: Tokenizer) -> None:
    clock = Slow(a=0.010, b=0.005)
    subjects = [TimedModel(name, clock.watch(name, model(words))) for name in ("a", "b")]

    def noisy() -> float:
        slow = 0.4 < clock.now < 0.9
        clock.seconds = {"a": 0.030, "b": 0.015} if slow else {"a": 0.010, "b": 0.005}
        return clock.now

    comparisons = compare_all(subjects, TEXTS, seconds=3.0, devices=["cpu"], clock=noisy)
    assert comparisons.times_faster("cpu") == pytest.approx(2.0, rel=0.05)
    assert comparisons.teacher.speed("cpu").latency_p90_ms > 20.0


def test_what_is_measured_stays_as_it_is(words: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    teacher, student = model(words, 2), model(words, 1)
    teacher.network.train()
    teacher.network.to(torch.bfloat16)  # is copied to be timed in float32
    seen = list[torch.dtype]()
    monkeypatch.setattr(timing, "WARM_UP", 1)
    teacher.network.encoder.register_forward_hook(lambda module, arguments, out: seen.append(out.dtype))
    comparison = compare(teacher, student, TEXTS, scores={"accuracy": (0.8, float("nan"))}, seconds=0.2)
    assert set(seen) == {torch.float32}
    assert teacher.network.training
    assert not student.network.training
    assert next(teacher.network.parameters()).dtype == torch.bfloat16
    assert [m.name for m in comparison.models] == ["teacher", "student"]
    assert comparison.scores == {"accuracy": (0.8, None)}
    assert comparison.teacher.encoder == 2 * comparison.student.encoder
    lengths = [len(encoded.ids) for encoded in words.encode(TEXTS)]
    assert comparison.teacher.tokens_a_text == sum(lengths) / 4
    assert comparison.measured_on == "4 texts"


@pytest.mark.slow
@pytest.mark.parametrize("kind", suite_has(["crf", "squad"], ["classification", "ner", "crf", "squad", "choice"]))
def test_every_head_is_timed_in_half_precision_too(
    kind: str, words: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half precision is for GPUs; that the copies compute at all can be seen on a CPU."""
    monkeypatch.setattr(timing, "_precision", lambda device: torch.bfloat16)
    task_kind = learnable.KINDS[kind]
    data = learnable.prepared(task_kind, tmp_path)
    task: Any = make_task({"crf": "tagging"}.get(kind, kind))
    examples = task.read(task.splits(data)["dev"])[:12]
    if not task.labels and task.head in ("sequence", "token"):
        task = task.with_labels(task.labels_in(task.read(task.splits(data)["train"])))
    a = point(words, 1)
    top = Readout(layers="last", lstm=8, crf=True) if kind == "crf" else Readout()
    models = []
    for _ in range(2):
        model = make_model(Contents(a, build(a, {task.head: max(task.classes, 1)}, top), words))
        models.append(model)
    comparison = compare(*models, examples, task=task, seconds=0.1, devices=["cpu"])
    assert comparison.teacher.speed("cpu").precision == "bfloat16"
    assert comparison.teacher.head > 0
    assert comparison.student.speed("cpu").tokens_per_s > comparison.student.speed("cpu").texts_per_s > 0


def test_sentences_of_our_own_are_ragged(words: Tokenizer) -> None:
    lengths = [len(sentence.split()) for sentence in SENTENCES]
    assert min(lengths) < 3
    assert max(lengths) > 80
    assert len(set(SENTENCES)) == len(SENTENCES) >= 20


# Values and words


def test_ratios_by_hand() -> None:
    assert FOUND.times_smaller() == pytest.approx(110 / 16.5)
    assert FOUND.times_lighter() == pytest.approx(440 / 66)
    assert FOUND.times_faster() == pytest.approx(60 / 6.6)
    assert FOUND.times_more_texts() == pytest.approx(350 / 40)
    assert FOUND.share_kept("accuracy") == pytest.approx(0.881 / 0.91)
    assert FOUND.share_kept("perplexity") is None
    assert replace(FOUND, scores={"matthews": (-0.1, 0.2)}).share_kept("matthews") is None
    assert verdict(FOUND) == "6.7x smaller, 9.1x faster, keeps 96.8 % of the accuracy"
    assert times(0.5, "smaller", "larger") == "2x larger"
    assert times(1.004, "faster", "slower") == times(0.997, "faster", "slower") == "the same"


def test_json_there_and_back(tmp_path: Path) -> None:
    both = replace(FOUND, models=tuple(replace(m, speeds=(*m.speeds, speed("cuda", threads=0))) for m in FOUND.models))
    for comparison in (FOUND, both, replace(FOUND, scores={"f1": (None, 0.5)})):
        assert read_comparison(comparison.write(tmp_path)) == comparison
    written = json.loads((tmp_path / COMPARISON).read_text())
    assert written["against_the_first"][0]["times_smaller"] == pytest.approx(110 / 16.5)
    assert written["against_the_first"][0]["share_kept"] == {"f1": None}


BROKEN = {
    "version": (("version",), 7, "version: must be 1, not 7"),
    "no models": (("models",), None, "models: must be a list"),
    "one model": (("models",), [], "must be two or more, not 0"),
    "a word": (("models", 0, "parameters"), "many", "models.0.parameters: must be a whole number"),
    "zero": (("models", 1, "weight_bytes"), 0, "models.1.weight_bytes: must be above 0"),
    "infinite": (
        ("models", 1, "speeds", 0, "latency_ms"),
        float("inf"),
        "models.1.speeds.0.latency_ms: must be finite",
    ),
    "missing": (("models", 0, "encoder"), ..., "models.0.encoder: is missing"),
    "missing inside": (("models", 0, "speeds", 0, "texts_per_s"), ..., "models.0.speeds.0.texts_per_s: is missing"),
    "unknown": (("models", 0, "parametres"), 3, "did you mean 'parameters'"),
    "no table": (("models", 0, "speeds", 0), 3, "must be a table"),
    "devices": (("models", 0, "speeds", 0, "device"), "cuda", "must be timed on the same devices"),
    "a score": (("scores", "accuracy"), [0.5], "must be a list of 2 numbers"),
    "no number": (("scores", "accuracy"), [0.5, "good"], "scores.accuracy.1: must be a number"),
    "scores": (("scores",), [], "scores: must be a table"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_refused_in_one_line(case: str, tmp_path: Path) -> None:
    (*path, last), value, reason = BROKEN[case]
    tree = FOUND.as_json()
    place: Any = tree
    for key in path:
        place = place[key]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    (tmp_path / COMPARISON).write_text(json.dumps(tree))
    with pytest.raises(UserError, match=COMPARISON) as refused:
        read_comparison(tmp_path / COMPARISON)
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)
    assert reason in comparison_of_run(tmp_path).error


# What people see


def test_page_and_table_hold_the_figures() -> None:
    three = Page(comparison_page(Comparison((LARGE, replace(SMALL, name="x" * 60), SMALL), {"f1": (0.5, None, 0.25)})))
    assert "keeps 50.0 % of the f1" in three.text
    page = Page(comparison_page(FOUND))
    figures = (
        "6.7x smaller, 9.1x faster, keeps 96.8 %",
        "110M → 16.5M",
        "440 MB → 66 MB",
        "60 → 6.6",
        "91.00 → 88.10",
    )
    for figure in (
        *figures,
        "350 texts/s",
        "8.75x more",
        "12.5",
        "17.25",
        "a <chip>, 2 threads",
        "872 examples of sst-2",
    ):
        assert figure in page.text, figure
    titles = ["Parameters", "accuracy", "One text at a time, CPU", "Many texts, packed, CPU", "perplexity"]
    assert page.titles()[:5] == titles
    widths = [float(bar.get("width")) for bar in page.svgs[2].iter("{http://www.w3.org/2000/svg}rect")]
    assert widths[1] / widths[0] == pytest.approx(6.6 / 60, rel=0.01)
    table = {row.name: row for row in comparison_rows(FOUND)}
    assert table["  in the layers"].values == ["85M", "10M"]
    assert table["perplexity"].against == [("", None)]
    assert table["accuracy"].against == [("keeps 96.8 %", True)], "red: something was lost"
    assert table["  in the layers"].against == [("8.5x smaller", False)]


def test_a_score_within_the_interval_of_the_first_is_kept() -> None:
    spans = ((0.9, 0.95), (0.85, 0.93))
    shown = replace(FOUND, scores={"accuracy": (0.93, 0.91)}, intervals={"accuracy": spans})
    kept, intervals, *_ = comparison_rows(shown)
    assert kept.against == [("keeps 97.8 %", False)]
    assert (intervals.name, intervals.values) == ("  95 % interval", ["90.00 to 95.00", "85.00 to 93.00"])
    lost = replace(shown, scores={"accuracy": (0.93, 0.89)})
    assert comparison_rows(lost)[0].against == [("keeps 95.7 %", True)]
    assert Comparison.from_json(shown.as_json(), "x") == shown


def test_reports_of_runs_show_it_where_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"kind": "train", "step": 1, "loss": 2.0}\n')
    task, lines = make_task("classification").with_labels(["a", "b"]), [{"text": "x", "gold": "a", "predicted": "a"}]
    pages = [lambda: run_page(tmp_path), lambda: finetuning_page(tmp_path, task, {}, {"dev": lines})]
    for make_page in pages:
        assert "Teacher and student" not in make_page()
    FOUND.write(tmp_path)
    for make_page in pages:
        assert "Teacher and student" in make_page()
        assert "6.7x smaller, 9.1x faster, keeps 96.8 %" in make_page()
    (tmp_path / COMPARISON).write_text("{")
    for make_page in pages:
        assert "is not valid JSON" in make_page()


# The verb


def test_the_verb_scores_and_times(words: Tokenizer, tmp_path: Path, command: Command) -> None:
    large, small = judge(tmp_path / "large" / "model", words, 2, 0), judge(tmp_path / "small" / "model", words, 1, 1)
    kinds = ["good", "good", "good", "bad"]
    data = learnable.write(
        tmp_path / "dev.csv", [{"text": text, "label": k} for text, k in zip(TEXTS, kinds, strict=True)]
    )
    arguments = (
        "compare",
        large,
        small,
        "--task",
        "classification",
        "--data",
        data,
        "--seconds",
        0.2,
        "--device",
        "cpu",
    )
    report = command.well(*arguments, "--out", tmp_path / "out", "--json").json
    assert report["scores"]["accuracy"] == [0.75, 0.25]
    assert report["against_the_first"][0]["share_kept"]["accuracy"] == pytest.approx(1 / 3)
    assert [m["name"] for m in report["models"]] == ["large", "small"]
    assert report["models"][1]["weight_bytes"] == (small / "model.safetensors").stat().st_size
    assert report["measured_on"] == "4 examples of classification"
    assert read_comparison(tmp_path / "out" / COMPARISON).as_json() == report
    assert "keeps 33.3 % of the accuracy" in Page((tmp_path / "out" / "report.html").read_text()).text
    output = command.well(*arguments).out
    assert "keeps 33.3 %" in output
    assert "75.00" in output


def test_the_verb_without_a_task(words: Tokenizer, tmp_path: Path, command: Command) -> None:
    left, right = learnable.model(tmp_path / "one", words), learnable.model(tmp_path / "two", words, 1)
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"text": "a boat", "pair": "the tree"}\n{"text": "a lamp"}\n')
    report = command.well("compare", left, right, left, "--texts", texts, "--seconds", 0.2, "--json").json
    assert len({m["name"] for m in report["models"]}) == 3  # told apart, though two are the same
    assert report["measured_on"] == "2 texts of texts.jsonl"
    assert report["scores"] == {}
    assert report["models"][0]["head"] == 32 * 33, "the pooler"
    assert report["models"][0]["tokens_a_text"] == (7 + 4) / 2
    result = command.well("compare", "bert-tiny", right, "--tokenizer", left, "--seconds", 0.2)
    assert "random weights" in result.err
    assert f"{len(SENTENCES)} built-in sentences" in result.out
    assert "x smaller" in result.out
    assert "bertree compare" in command.well("compare", "--help").out


WRONG = {
    "one model": (["ONE"], "give at least two models"),
    "no model": (["ONE", "nowhere/model"], "no such folder"),
    "no preset": (["ONE", "bert-bse"], "bertree downloads nothing"),
    "no tokenizer": (["ONE", "bert-tiny"], "give --tokenizer FOLDER"),
    "no data": (["ONE", "ONE", "--task", "sst-2"], "--task: is about a task's files; give them with --data"),
    "no task": (["ONE", "ONE", "--data", "DATA"], "has no task head"),
    "columns": (["ONE", "ONE", "--text", "body"], "name columns of --data or of --texts"),
    "task": (["ONE", "ONE", "--task", "sst-3", "--data", "DATA"], "did you mean 'sst-2'"),
    "head": (["ONE", "ONE", "--task", "squad", "--data", "DATA"], "needs a model with a 'span' head"),
    "missing data": (["ONE", "ONE", "--task", "sst-2", "--data", "nowhere"], "nowhere: no such file"),
    "texts": (["ONE", "ONE", "--texts", "nowhere.txt"], "nowhere.txt: no such file"),
    "empty": (["ONE", "ONE", "--texts", "EMPTY"], "holds no text"),
    "device": (["ONE", "ONE", "--device", "warp"], "--device warp"),
    "seconds": (["ONE", "ONE", "--seconds", "0"], "--seconds"),
    "no number of seconds": (["ONE", "ONE", "--seconds", "nan"], "--seconds"),
    "a folder of texts": (["ONE", "ONE", "--texts", "ONE"], "one"),
    "no text in it": (
        ["ONE", "ONE", "--texts", "DATA", "--text", "nowhere"],
        "dev.csv: line 2: has no column 'nowhere'",
    ),
    "out": (["ONE", "ONE", "--out", "EMPTY"], "is a file"),
    "inside a file": (["ONE", "ONE", "--out", "INSIDE"], "empty.txt: is a file"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_line(case: str, words: Tokenizer, tmp_path: Path, command: Command) -> None:
    arguments, reason = WRONG[case]
    (tmp_path / "empty.txt").write_text("\n")
    places = {
        "ONE": learnable.model(tmp_path / "one", words, 1),
        "DATA": learnable.write(tmp_path / "dev.csv", [{"body": "a boat", "label": "good"}]),
        "EMPTY": tmp_path / "empty.txt",
        "INSIDE": tmp_path / "empty.txt" / "out",
    }
    result = command("compare", *(places.get(word, word) for word in arguments))
    assert result.code == 2
    assert reason in result.err
    assert len([line for line in result.lines if ": note:" not in line]) == 1
