"""The recommended recipe and its small variant: they learn, and transformers reads what they make."""

from pathlib import Path

import pytest
import torch
import transformers

import bertree
from bertree.batch import Batch
from bertree.interop.huggingface.config import family_of_architecture
from bertree.model.presets import preset
from bertree.pretraining import recipe
from tests.pretraining.test_learning import repeated, tried


@pytest.mark.parametrize("name", ["best-30min", "modernbert-tiny"])
def test_the_model_is_a_modernbert(name: str) -> None:
    settings = recipe.load(name)
    a = preset(settings.model["preset"]).architecture.with_values({"vocab_size": 30_000} | settings.axes)
    assert family_of_architecture(a).model_type == "modernbert"


def test_masks_and_lengths_change_from_phase_to_phase() -> None:
    for name in ("best-30min", "modernbert-tiny"):
        phases = recipe.load(name).phases
        rates, lengths = [phase.mask_rate for phase in phases], [phase.max_length for phase in phases]
        assert rates == sorted(rates, reverse=True)
        assert lengths == sorted(lengths)
        assert len({*rates}) > 1 < len({*lengths})


@pytest.mark.proof  # test_learning.py shows it of another recipe
def test_context_beats_counting() -> None:
    phase = "phases=[{steps=45, max_length=32, batch_tokens=512, mask_rate=0.15}]"
    losses = tried("modernbert-tiny", repeated, phase, "schedule.warmup=8")
    assert losses["mlm"] < losses["bigram"] - 0.4
    assert losses["mlm"] < losses["unigram"] - 0.8


def test_transformers_reads_the_model_of_a_run(token_store: Path, tmp_path: Path) -> None:
    steps = [f"phases.{number}.steps=2" for number in range(3)]
    settings = [*steps, "schedule.warmup=2", "run.device=cpu", "data.held_out_share=0.1", "model.width=32"]
    run = bertree.pretrain("modernbert-tiny", store=token_store, out=tmp_path / "run", overrides=settings)
    assert run.complete
    peer = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "run" / "model").eval()
    assert type(peer).__name__ == "ModernBertForMaskedLM"
    model = run.model
    tokenizer = model.required_tokenizer
    assert (peer.config.cls_token_id, peer.config.sep_token_id) == (tokenizer.id_of("cls"), tokenizer.end_id)
    ids = tokenizer.backend.encode("the captain saw the sea").ids
    states = peer.model(torch.tensor([ids])).last_hidden_state[0]
    batch = Batch.pack([ids])
    with torch.inference_mode():
        mine = model.network(batch)
    assert torch.allclose(states, mine, atol=1e-5)
