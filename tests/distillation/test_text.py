"""`bertree distill` on text: a teacher helps, whatever the student's shape; a stopped run ends as one that was not."""

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import bertree
from bertree.batch import IGNORED, Batch, PretrainingLabels
from bertree.data.store import Store
from bertree.data.store_builder import build_store
from bertree.distillation import teacher_cache, text_recipe
from bertree.distillation.distill import distill
from bertree.errors import UserError
from bertree.files.formats import read_toml
from bertree.inference.load import random_model
from bertree.model.pooling import Dense, PoolingConfig, SentencePooling
from bertree.objectives.distill_pretraining import TERMS, add_projections, distillation_objective
from bertree.objectives.pretraining import pretraining_objective
from bertree.pretraining import recipe as recipes
from bertree.pretraining.pretrain import pretrain
from bertree.text import tokenizer_training
from bertree.text.corpus import Corpus
from tests.support import runs
from tests.support.batches import axes_of
from tests.support.command import Command
from tests.support.learnable import one_thread
from tests.support.shared import common_folder, make_once, suite_has

VOCABULARY = 150
TEACHER = """
extends = "bert-base-tiny"
[model]
layers = 4
width = 64
heads = 2
max_positions = 64
[data]
format = "full-sentences"
held_out_share = 0.1
[objective]
nsp = 0.0
[optim]
lr = 3e-3
[schedule]
warmup = 20
[run]
device = "cpu"
eval_tokens = 4096
log_every = 50
[[phases]]
steps = 150
max_length = 32
batch_tokens = 512
mask_rate = 0.15
"""
QUICK = (
    *("phases.0.batch_tokens=512", "phases.0.mask_rate=0.15", "schedule.warmup=3", "data.held_out_share=0.1"),
    *("run.device=cpu", "run.log_every=1", "run.eval_tokens=4096"),
)
SHORT = (*QUICK, "phases.0.steps=20", "schedule.warmup=5")


@pytest.fixture(scope="session")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of three words each, of 30, in any order: what stands at a mask is told by the context alone."""
    return make_once(common_folder(tmp_path_factory) / "stories", _write_stories) / "store"


def _write_stories(folder: Path) -> None:
    folder.mkdir()
    draw = np.random.default_rng(0)
    halves = [first + second for first in "bdfgklmnprst" for second in "aeiou"]
    words = [start + end for start in halves[:6] for end in halves[20:25]]
    texts = [" ".join(draw.choice(draw.choice(words, 3, replace=False), 28)) + " ." for _ in range(1500)]
    (folder / "text.txt").write_text("\n\n".join(texts))
    tokenizer = tokenizer_training.train(lambda: texts, "wordpiece", VOCABULARY)
    tokenizer_training.save(tokenizer, folder / "tokenizer")
    build_store(Corpus([str(folder / "text.txt")]), tokenizer, folder / "store")


@pytest.fixture(scope="session")
def teacher(stories: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT that has learned a little."""

    def train(folder: Path) -> None:
        folder.mkdir()
        (folder / "teacher.toml").write_text(TEACHER)
        with one_thread():
            assert pretrain(folder / "teacher.toml", store=stories, out=folder / "run").complete

    return make_once(common_folder(tmp_path_factory) / "teacher", train) / "run" / "model"


def distill_tiny(teacher: Path, store: Path, overrides: list[str], out: Path, cache: str = "") -> bool:
    """Distill the tiny recipe without timing; return whether the run is complete."""
    run = distill(teacher, student="distilbert-tiny", store=store, out=out, cache=cache, seconds=0, overrides=overrides)
    return run.complete


def learned(out: Path) -> float:
    """Held-out loss at the end."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [float(line["mlm"]) for line in lines if line["kind"] == "eval"][-1]


@pytest.fixture(scope="module")
def untaught(teacher: Path, stories: Path, tmp_path_factory: pytest.TempPathFactory) -> float:
    """Held-out loss of a student that has its teacher's layers and is not taught."""
    out = tmp_path_factory.mktemp("untaught") / "out"
    with one_thread():
        assert distill_tiny(teacher, stories, [*SHORT, "distill.ce=0", "distill.cos=0"], out)
    return learned(out)


def test_a_teacher_helps_and_so_does_a_warm_start(
    teacher: Path, stories: Path, untaught: float, tmp_path: Path
) -> None:
    losses_of = {}
    for name, changes in {"whole": [], "random": ["distill.start=random"]}.items():
        assert distill_tiny(teacher, stories, [*SHORT, *changes], tmp_path / name)
        losses_of[name] = learned(tmp_path / name)
    assert losses_of["whole"] < untaught - 0.02, "the same start, the same steps: the teacher helps"
    assert losses_of["whole"] < losses_of["random"] - 1.0, "and so do its layers"


TERMS_ALONE = [("ce", 20), ("cos", 20), ("hidden", 20), ("relation", 40)]


@pytest.mark.parametrize(("term", "steps"), suite_has(TERMS_ALONE[2:3], TERMS_ALONE))
def test_every_term_alone_is_learned(term: str, steps: int, teacher: Path, stories: Path, tmp_path: Path) -> None:
    weights = dict.fromkeys(("ce", "cos", "hidden", "relation"), 0.0) | {term: 1.0}
    words = [f"distill.{name}={weight}" for name, weight in weights.items()]
    narrow = ["model.preset=bert-tiny", "model.width=16", "model.heads=2", "model.layers=2"]
    shape = [*narrow, "distill.relation_heads=4", "objective.mlm=0", *QUICK, f"phases.0.steps={steps}"]
    assert distill_tiny(teacher, stories, [*words, *shape], tmp_path / "out")
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    losses = [line[term] for line in lines if line["kind"] == "train"]
    assert sum(losses[-5:]) < 0.97 * sum(losses[:5])
    assert set(losses) == {line["loss"] for line in lines if line["kind"] == "train"}, "nothing else is asked"
    model = bertree.load(tmp_path / "out" / "model")
    assert model.architecture.width == 16
    assert not any("bridge" in name for name in model.network.state_dict()), "bridges are thrown away"


def test_a_student_with_shared_layers(teacher: Path, stories: Path, tmp_path: Path) -> None:
    # A width of 36 is divided by no number of heads the teacher has: relations take fewer.
    settings = ["model.preset=albert-base", "model.width=36", "model.heads=2", "model.layers=3", "phases.0.steps=3"]
    settings += ["model.embedding_width=16", "distill.hidden=1", "distill.relation=1", "distill.match=1,2,4", *QUICK]
    assert distill_tiny(teacher, stories, settings, tmp_path / "out")
    assert axes_of(bertree.load(tmp_path / "out" / "model")).sharing == "all"


def test_half_needs_no_recipe_and_hugging_face_reads_it(stories: Path, tmp_path: Path, command: Command) -> None:
    from transformers import AutoModelForMaskedLM

    (tmp_path / "teacher.toml").write_text(
        TEACHER.replace("steps = 150", "steps = 5").replace("[data]", 'residual = "post-norm"\n[data]')
    )
    assert pretrain(tmp_path / "teacher.toml", store=stories, out=tmp_path / "t", warmup=1).complete
    result = command.well(
        *("distill", tmp_path / "t" / "model", "--store", stories, "--out", tmp_path / "out", "--seconds", "0.5"),
        *("--epochs", "0.4", "--layers", "2,4", *[change for change in QUICK if "phases" not in change]),
    )
    assert "layers 2, 4" in result.out
    assert "ce 5, mlm 2, cos 1" in result.out
    theirs = AutoModelForMaskedLM.from_pretrained(tmp_path / "out" / "model")
    assert type(theirs).__name__ == "DistilBertForMaskedLM"
    comparison = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert [model["name"] for model in comparison["models"]] == ["teacher", "student"]
    assert comparison["models"][0]["encoder"] == 2 * comparison["models"][1]["encoder"]
    assert "Teacher and student" in (tmp_path / "out" / "report.html").read_text()
    recipe = read_toml(tmp_path / "out" / "recipe.toml")
    assert recipe["phases"][0]["max_length"] == 32, "no longer than the teacher reads"
    assert recipe["phases"][0]["batch_tokens"] == 4096, "small text, small batches"


def test_the_run_is_sized_by_the_text_and_by_what_is_told(teacher: Path, stories: Path) -> None:
    def phase(*overrides: str, epochs: float = 0.0, student: str = "half") -> tuple[int, int, int, int]:
        recipe = text_recipe.find_recipe(student, {"data.store": str(stories)}, overrides)
        sized = text_recipe.set_sizes(recipe, student, epochs, Store.open(stories), 32)
        only = sized.phases[0]
        return only.steps, only.batch_tokens, only.max_length, sized.schedule.warmup

    tokens = Store.open(stories).tokens
    usual = math.ceil(3 * tokens / 4096)
    assert phase() == (usual, 4096, 32, math.ceil(usual / 20))
    assert phase("phases.0.mask_rate=0.3") == phase(), "only steps say how long it takes"
    assert phase("phases.0.steps=7", "schedule.warmup=2", "phases.0.max_length=16") == (7, 4096, 16, 2)
    assert phase("phases.0.steps=7", "schedule.warmup=2") == (7, 4096, 32, 2), "one setting leaves the others sized"
    assert phase("phases.0.steps=10") == (10, 4096, 32, 1)
    assert phase("phases.0.steps=7", student="distilbert-h200-5min")[2] == 32, "a built-in recipe fits itself too"
    assert phase("phases=[{steps=7, batch_tokens=1024, max_length=16}]", "schedule.warmup=2") == (7, 1024, 16, 2)
    assert phase("phases.0={steps=7, batch_tokens=1024, max_length=16}", "schedule.warmup=2") == (7, 1024, 16, 2)
    two = ["phases=[{steps=7, max_length=16}, {steps=3, max_length=32}]", "schedule.warmup=2"]
    recipe = text_recipe.find_recipe("half", {"data.store": str(stories)}, two)
    phases = text_recipe.set_sizes(recipe, "half", 0.0, Store.open(stories), 32).phases
    assert [phase.steps for phase in phases] == [7, 3]
    with pytest.raises(UserError, match=r"phases.0.steps says the same"):
        phase("phases=[{steps=7}]", "schedule.warmup=2", epochs=1.0)
    assert phase("phases.0.batch_tokens=512", "schedule.warmup=9", epochs=1.0) == (math.ceil(tokens / 512), 512, 32, 9)
    assert phase(epochs=1.0, student="distilbert-tiny")[:2] == (math.ceil(tokens / 1024), 1024)


def test_pieces_of_a_batch_add_up(teacher: Path) -> None:
    """All terms, through bridges: the gradient does not depend on how a batch is cut."""
    model = bertree.load(teacher)
    model.network.requires_grad_(False)
    student = random_model(
        model.architecture.with_values({"width": 16, "layers": 2, "dropout": 0.0}), {"mask": 0}, seed=1
    ).network
    model.network.vector = model.pooling
    student.vector = SentencePooling(16, PoolingConfig(dense=(Dense(64, "identity"),)))
    weights = dict.fromkeys(TERMS, 1.0)
    learner = add_projections(student, 16, 64, weights, 2)
    for everywhere in (False, True):
        objective = distillation_objective(
            weights, model.network, everywhere=everywhere, pairs=[(1, 2), (2, 4)], relation=(2, 4, 2)
        )
        sequences = [[5, 6, 7, 8], [9, 10, 11], [12, 13, 14, 15, 16]]
        masked, targets = [[1, 3], [], [0]], [[30, 31], [], [32]]
        gradients = []
        for cut in ([[0, 1, 2]], [[0], [1, 2]]):
            learner.zero_grad()
            counts: dict[str, int] = dict.fromkeys(TERMS, 0)
            batches = [part(sequences, masked, targets, rows) for rows in cut]
            for batch in batches:
                counts = {name: counts[name] + count for name, count in objective.counts(batch).items()}
            for batch in batches:
                losses = objective(learner, batch).losses
                torch.stack([loss.sum / counts[name] for name, loss in losses.items()]).sum().backward()
            gradients.append([p.grad.clone() for p in learner.parameters() if p.grad is not None])
            assert all(p.grad is None for p in model.network.parameters()), "the teacher does not learn"
        assert counts["mlm"] == 3
        assert counts["ce"] == (12 if everywhere else 3)
        for left, right in zip(*gradients, strict=True):
            assert torch.allclose(left, right, atol=1e-5)


def part(sequences: list[list[int]], masked: list[list[int]], targets: list[list[int]], rows: list[int]) -> Batch:
    """Some sequences as one batch, with a question that is ignored at the end, as filled batches have."""
    from dataclasses import replace

    batch = Batch.pack([sequences[row] for row in rows])
    starts = batch.cu_seqlens.tolist()
    places = [starts[n] + place for n, row in enumerate(rows) for place in masked[row]]
    answers = [answer for row in rows for answer in targets[row]]
    spare = next(place for place in range(starts[-1]) if place not in places)
    return replace(batch, labels=PretrainingLabels(torch.tensor([*places, spare]), torch.tensor([*answers, IGNORED])))


def test_without_a_teacher_it_is_pretraining(teacher: Path) -> None:
    model = bertree.load(teacher)
    batch = part([[5, 6, 7, 8]], [[1, 3]], [[30, 31]], [0])
    student = random_model(model.architecture, {"mask": 0}, seed=1).network
    learner = add_projections(student, 64, 64, {}, 0)
    ours = distillation_objective({"mlm": 2.0}, model.network)(learner, batch).losses["mlm"].sum
    assert torch.equal(ours, pretraining_objective(mlm=2.0)(student, batch).losses["mlm"].sum)


@pytest.mark.proof  # tests/pretraining/test_kill.py kills the same job, test_task_resume.py one with a teacher
def test_killed_and_resumed(teacher: Path, stories: Path, tmp_path: Path) -> None:
    arguments = ("distill", str(teacher), "--student", "distilbert-tiny", "--store", str(stories), "--seconds", "0")
    quick = (
        *QUICK,
        "run.save_every=1",
        "run.eval_every=4",
        "phases.0.steps=12",
        "distill.hidden=1",
        "model.dropout=0.1",
    )
    quick += ("schedule.warmup=3", "model.width=16", "model.embedding_width=16", "run.micro_tokens=256")
    assert runs.finish(*arguments, *quick, "--out", str(tmp_path / "whole")) == 0
    out, log = tmp_path / "out", tmp_path / "log"
    arguments += (*quick, "--out", str(out), "--resume")
    runs.kill(*arguments, log=log, after=(1, 3), moments=random.Random(6))
    assert runs.finish(*arguments, log=log) == 0, log.read_text()
    assert runs.results(out) == runs.results(tmp_path / "whole")


@pytest.mark.proof  # tests/pretraining/test_time_budget.py kills runs of minutes, by the same job
def test_a_killed_run_of_minutes_ends_as_one_of_as_many_steps(teacher: Path, stories: Path, tmp_path: Path) -> None:
    log, out, again = tmp_path / "log", tmp_path / "out", tmp_path / "again"
    arguments = ("distill", str(teacher), "--student", "distilbert-tiny", "--store", str(stories), "--seconds", "0")
    arguments += (*QUICK, "model.width=16", "model.embedding_width=16", "run.eval_every=9999", "run.save_every=9999")
    command = (*arguments, "run.minutes=0.05", "--out", str(out), "--resume")
    fault = "measure:0.2:0.2,half the tensors:2"
    assert runs.finish(*command, "run.save_every=1", log=log, fault=fault) == 9, log.read_text()
    assert runs.finish(*command, log=log) == 0, log.read_text()
    kept = recipes.load(str(out / "recipe.toml"))
    assert kept.phases[0].steps == 15, "three seconds of steps that take 0.2 seconds each"
    numbers = (f"phases.0.steps={kept.phases[0].steps}", f"schedule.warmup={kept.schedule.warmup}")
    assert runs.finish(*arguments, *numbers, "--out", str(again), log=log) == 0, log.read_text()
    assert runs.results(out) == runs.results(again)


def test_targets_kept_on_disk(
    teacher: Path, stories: Path, untaught: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teacher_cache, "CHUNK", 16)
    shape = [*SHORT, "distill.cos=0"]
    cache = tmp_path / "cache"

    def run(name: str, *changes: str, kept: bool = True) -> float:
        assert distill_tiny(teacher, stories, [*shape, *changes], tmp_path / name, str(cache) if kept else "")
        return learned(tmp_path / name)

    live = run("live", kept=False)
    kept = run("kept", "distill.top_k=16")
    assert kept == pytest.approx(live, abs=0.03), "16 of 150 tokens say nearly all"
    assert kept < untaught - 0.02
    files = sorted(cache.glob("steps-*"))
    assert len(files) == 2
    stamps = [file.stat().st_mtime_ns for file in files]
    # Another student, another rate: the teacher is not asked again.
    run("other", "distill.top_k=16", "model.layers=1", "optim.lr=1e-3")
    assert [file.stat().st_mtime_ns for file in files] == stamps
    with pytest.raises(UserError, match=r"another distill\.top_k"):
        run("more", "distill.top_k=17")
    with pytest.raises(UserError, match="another seed"):
        run("seeded", "distill.top_k=16", "run.seed=5")
    assert not (tmp_path / "seeded").exists(), "a mistake leaves no folder"
    whole = files[0].read_bytes()
    kept_ = load_file(files[0])
    for name, wrong in (
        ("ids", kept_["ids"].astype(np.int64) - 1000),
        ("ids", np.full_like(kept_["ids"], VOCABULARY)),
        ("scores", np.full_like(kept_["scores"], -0.01)),
        ("rows", kept_["rows"].astype(np.float32)),
    ):
        save_file(kept_ | {name: wrong}, files[0])
        with pytest.raises(UserError, match="damaged; remove it"):
            run(f"wrong {name} {wrong.dtype} {wrong.flat[0]}", "distill.top_k=16")
    files[0].write_bytes(whole[:-100])
    with pytest.raises(UserError, match="damaged; remove it"):
        run("broken", "distill.top_k=16")
    files[0].unlink()
    assert run("mended", "distill.top_k=16") == kept


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (["distill.cos=1"], "distill.cos=0"),
        (["distill.cos=0", "distill.everywhere=true"], "distill.everywhere=false"),
        (["distill.cos=0", f"distill.top_k={VOCABULARY}"], "must be less than the vocabulary"),
    ],
)
def test_what_cannot_be_kept(changes: list[str], why: str, teacher: Path, stories: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=why):
        distill_tiny(teacher, stories, [*QUICK, *changes], tmp_path / "out", str(tmp_path / "cache"))


def test_mistakes(command: Command, teacher: Path, stories: Path, tmp_path: Path, small_folder: Path) -> None:
    store, out = str(stories), str(tmp_path / "out")
    mistakes = [
        (["no-such"], "no such folder or preset"),
        (["bert-tiny", "distill.ce=1"], "nothing to teach"),
        ([str(small_folder)], "another tokenizer"),
        ([str(teacher), "--student", "bert-smal"], "did you mean"),
        ([str(teacher), "--student", "distilbert-tiny", "distill.coss=1"], "did you mean 'cos'"),
        ([str(teacher), "--student", "distilbert-tiny", "distill.temperature=0"], "must be above 0"),
        ([str(teacher), "--student", "distilbert-tiny", "objective.nsp=1"], "nsp"),
        ([str(teacher), "--student", "distilbert-tiny", "distill.layers=1,2,3"], "give 2 numbers"),
        ([str(teacher), "--student", "distilbert-tiny", "phases.0.max_length=64"], "set phases.0.max_length=32"),
        ([str(teacher), "--student", "distilbert-tiny", "distill.relation=1", "distill.relation_heads=5"], "divide"),
        ([str(teacher), "--student", "distilbert-tiny", "model.start=x"], "distill.start"),
        ([str(teacher), "--student", "distilbert-tiny", "model.vocab_size=9"], "its teacher's vocabulary"),
        (
            [str(teacher), "--student", "distilbert-tiny", "data.masking=next", "model.attention=causal"],
            "full attention",
        ),
        ([str(teacher), "--student", "distilbert-tiny", "model.attention=causal"], "must be the teacher's"),
        ([str(teacher), "--student", "distilbert-tiny", "model.heads=4", "--layers", "1,2"], "number of heads"),
        ([str(teacher), "--student", "distilbert-tiny", "distill.start=random", "--layers", "1,2"], "leave one"),
        ([str(teacher), "--student", "distilbert-tiny", "--epochs", "2", "phases.0.steps=500"], "says the same"),
        ([str(teacher), "--student", "distilbert-tiny", "--epochs", "2", "run.minutes=1"], "leave one of them out"),
        ([str(teacher), "--student", str(teacher)], "can be taught a task"),
        ([str(teacher), "--student", "distilbert-tiny", "--seeds", "2"], "--seeds: is for --task"),
        (
            [str(teacher), "--student", "distilbert-tiny", "--cache", "c", "distill.ce=0", "distill.cos=0"],
            "nothing would",
        ),
    ]
    for words, why in mistakes:
        result = command("distill", words[0], "--store", store, "--out", out, *words[1:])
        assert result.code == 2, words
        assert why in result.err, (why, result.err)
        assert result.err.count("\n") == 1, result.err
        assert not (tmp_path / "out").exists(), words
    for words in ([str(teacher)], [str(teacher), "--store", store, "--task", "sst-2"]):
        result = command("distill", *words)
        assert (result.code, "--store" in result.err) == (2, True)
    result = command("pretrain", "distilbert", "--store", store, "--out", out)
    assert (result.code, "give it to bertree distill, as its student" in result.err) == (2, True)
