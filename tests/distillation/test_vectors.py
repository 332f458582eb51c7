"""`bertree distill` with distill.vector: a student learns a sentence encoder's vectors beside masked tokens."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import bertree
from bertree.batch import IGNORED, Batch, PretrainingLabels
from bertree.data.store_builder import build_store
from bertree.distillation.distill import distill
from bertree.errors import UserError
from bertree.inference.load import random_model
from bertree.inference.model import Model
from bertree.model.pooling import Dense, PoolingConfig, SentencePooling
from bertree.model.presets import preset
from bertree.objectives.distill_pretraining import add_projections, distillation_objective, without_masks
from bertree.text import tokenizer_training
from bertree.text.corpus import Corpus

NARROW = ("model.preset=bert-tiny", "model.width=16", "model.heads=2", "model.layers=2", "distill.start=random")
QUICK = (
    *("phases.0.steps=30", "phases.0.batch_tokens=512", "phases.0.max_length=32", "phases.0.mask_rate=0.15"),
    *("schedule.warmup=3", "data.held_out_share=0.1", "data.format=doc-sentences", "optim.lr=1e-2"),
    *("run.device=cpu", "run.log_every=1", "run.eval_tokens=2048"),
)
VECTORS = ("distill.ce=0", "distill.cos=0", "distill.vector=1")


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Sentences about one of eight things each, of words that only that thing has."""
    draw = np.random.default_rng(0)
    things = [[f"{a}{b}{c}" for b in "aeiou" for c in "ln"] for a in "bdfgkmpt"]
    return [" ".join(draw.choice(things[k % 8], 8)) + " ." for k in range(800)]


@pytest.fixture(scope="module")
def encoder(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence encoder without an MLM head: random weights, whose vectors tell the words of a text all the same."""
    folder = tmp_path_factory.mktemp("encoder")
    tokenizer_training.save(tokenizer_training.train(lambda: texts, "wordpiece", 150), folder / "tokenizer")
    a = preset("bert-tiny").architecture.with_values({"vocab_size": 150, "width": 64, "heads": 2, "dropout": 0.0})
    model = random_model(a, {}, seed=3)
    model.tokenizer = bertree.load("bert-tiny", tokenizer=folder / "tokenizer").tokenizer
    with torch.no_grad():  # embeddings that differ much from each other, so that vectors do
        model.network.encoder.embeddings.tokens.weight.normal_(std=1.0, generator=torch.Generator().manual_seed(5))
    model.vector = PoolingConfig(normalize=True)
    model.save(folder / "model")
    return folder / "model"


@pytest.fixture(scope="module")
def store(texts: list[str], encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The texts, each a document, as the encoder reads them."""
    folder = tmp_path_factory.mktemp("store")
    (folder / "text.txt").write_text("\n\n".join(texts))
    tokenizer = bertree.load(encoder).required_tokenizer
    build_store(Corpus([str(folder / "text.txt")]), tokenizer, folder / "store")
    return folder / "store"


def distilled(encoder: Path, store: Path, out: Path, overrides: Sequence[str], seconds: float = 0) -> Model:
    """Distill to the end and return the student."""
    run = distill(encoder, student="distilbert-tiny", store=store, out=out, seconds=seconds, overrides=[*overrides])
    assert run.complete
    return bertree.load(out / "model")


def cosine(first: Model, second: Model, texts: list[str]) -> float:
    """The mean cosine of two models' vectors of the same texts."""
    vectors = [model.embed(texts) for model in (first, second)]
    return float(np.mean([a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(*vectors, strict=True)]))


def test_a_narrow_student_learns_the_vectors_of_a_teacher_without_an_mlm_head(
    encoder: Path, store: Path, texts: list[str], tmp_path: Path
) -> None:
    student = distilled(encoder, store, tmp_path / "out", [*NARROW, *QUICK, *VECTORS], seconds=0.2)
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["vector"] for line in lines if line["kind"] == "train"]
    assert losses[-1] < 0.7 * losses[0]
    teacher = bertree.load(encoder)
    assert student.architecture.width == 16
    assert student.dimension == teacher.dimension == 64
    assert student.vector.normalize, "as the teacher's"
    assert "mask" in student.network.heads, "masked tokens are learned beside"
    learned = cosine(teacher, student, texts)
    assert learned > 0.3, "about 0 before"
    compared = json.loads((tmp_path / "out" / "comparison.json").read_text())["scores"]
    assert compared["perplexity"][0] is None, "the teacher has no MLM head"
    assert compared["vector_cosine"][1] == pytest.approx(learned, abs=0.1), "of held-out texts"


def test_half_of_a_sentence_encoder_starts_with_its_layers_and_pooling(
    encoder: Path, store: Path, texts: list[str], tmp_path: Path
) -> None:
    few = ["phases.0.steps=1", "schedule.warmup=1", "optim.lr=1e-9"]
    student = distilled(encoder, store, tmp_path / "out", [*QUICK, *VECTORS, *few])
    assert student.architecture.layers == 1
    assert student.vector.dense == ()
    assert cosine(bertree.load(encoder), student, texts[:50]) > 0.7


def test_the_teacher_reads_the_text_without_masks(encoder: Path) -> None:
    teacher = bertree.load(encoder)
    a = teacher.architecture.with_values({"width": 16})
    student = random_model(a, {"mask": 0}, seed=1).network.eval()
    student.vector = SentencePooling(16, PoolingConfig(dense=(Dense(64, "identity"),)))
    teacher.network.vector = teacher.pooling
    objective = distillation_objective({"vector": 1.0}, teacher.network)
    ids = [[2, 20, 21, 22, 3], [2, 30, 31, 3]]
    plain = Batch.pack(ids)
    masked = torch.tensor([1, 6, 0])
    batch = replace(
        plain,
        ids=plain.ids.index_fill(0, masked[:2], 4),
        labels=PretrainingLabels(masked, torch.tensor([20, 30, IGNORED])),
    )
    assert torch.equal(without_masks(batch).ids, plain.ids)
    loss = objective(add_projections(student, 16, 64, {"vector": 1.0}, 0), batch).losses["vector"].sum
    with torch.no_grad():
        wanted = teacher.network.vectors(teacher.network(plain), plain)
        vectors = student.vectors(student(batch), batch)
    assert float(loss.detach()) == pytest.approx(float((1 - torch.cosine_similarity(vectors, wanted)).sum()), abs=1e-5)
    assert objective.counts(batch) == {"vector": 2}


def test_empty_sequences_that_fill_up_a_shape_are_not_counted(encoder: Path) -> None:
    teacher = bertree.load(encoder)
    teacher.network.vector = teacher.pooling
    student = random_model(teacher.architecture, {"mask": 0}, seed=1).network.eval()
    student.vector = SentencePooling(64, PoolingConfig())
    learner, objective = (
        add_projections(student, 64, 64, {"vector": 1.0}, 0),
        distillation_objective({"vector": 1.0}, teacher.network),
    )
    labels = PretrainingLabels(torch.tensor([1]), torch.tensor([20]))
    batch = replace(Batch.pack([[2, 4, 21, 3]]), labels=labels)
    padded = replace(batch, cu_seqlens=torch.cat([batch.cu_seqlens, batch.cu_seqlens[-1:].expand(3)]))
    losses = [objective(learner, inputs).losses["vector"].sum for inputs in (batch, padded)]
    assert float(losses[0].detach()) == pytest.approx(float(losses[1].detach()))
    assert objective.counts(padded) == {"vector": 1}
    losses[1].backward()
    assert all(p.grad.isfinite().all() for p in student.parameters() if p.grad is not None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ((), "has no MLM head, so it cannot teach masked tokens; .*distill.ce=0 distill.vector=4"),
        (("distill.ce=0",), "has no MLM head"),
        ((*VECTORS, "data.masking=next", "model.attention=causal"), "distill.vector: is learned from text with masks"),
        (("distill.ce=0", "distill.vector=-1"), "distill.vector: must not be negative"),
    ],
)
def test_what_a_sentence_encoder_cannot_teach_is_refused(
    changes: tuple[str, ...], message: str, encoder: Path, store: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        distill(
            encoder, student="distilbert-tiny", store=store, out=tmp_path / "out", overrides=[*NARROW, *QUICK, *changes]
        )
    assert not (tmp_path / "out").exists()
