"""What a teacher's layers are read for: a part that is not known is refused, never read as another."""

from dataclasses import replace

import pytest
import torch

from bertree.batch import Batch, PretrainingLabels
from bertree.errors import UserError
from bertree.model.layers.positions import RotaryPositions
from bertree.model.network import build
from bertree.model.presets import preset
from bertree.objectives.distill_pretraining import add_projections, distillation_objective
from tests.support.parts import ScaledAttention, ScaledBlock, ScaledResidual

SMALL = {"vocab_size": 50, "width": 32, "heads": 2, "layers": 2, "ffn_width": 48}


@pytest.mark.parametrize("unknown", [ScaledAttention, ScaledBlock, ScaledResidual, RotaryPositions])
@pytest.mark.parametrize("where", ["student", "teacher"])
def test_relations_of_an_unknown_layer_are_refused(unknown: type, where: str) -> None:
    networks = {name: build(preset("bert-base").architecture.with_values(SMALL)) for name in ("student", "teacher")}
    objective = distillation_objective({"relation": 1.0}, networks["teacher"], relation=(2, 2, 2))
    learner = add_projections(networks["student"], 32, 32, {"relation": 1.0}, 0)
    batch = Batch.pack([[5, 6, 7], [8, 9]])
    batch = replace(batch, labels=PretrainingLabels(torch.tensor([1]), torch.tensor([6])))
    assert set(objective(learner, batch).losses) == {"relation"}
    stack = networks[where].encoder.stack
    block = stack.attention[1]
    if unknown is ScaledResidual:
        stack.residual = ScaledResidual()
    elif unknown is RotaryPositions:
        block.part.positions = RotaryPositions(16, 10_000.0)
    else:
        (block if unknown is ScaledBlock else block.part).__class__ = unknown
    with pytest.raises(UserError, match=f"layer 2 cannot be read.*{unknown.__name__}"):
        objective(learner, batch)
