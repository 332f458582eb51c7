"""A model that has learned two texts, each after its code, says them, predicts them and tells them apart."""

import pytest
import torch

from bertree.batch import Batch
from bertree.inference.model import Model
from bertree.text.framing import control_prefix
from tests.support.language_models import language_model

pytestmark = pytest.mark.train
TEXTS = {"boat": "the river in the garden by the road", "tree": "a lamp on the table with a stone and a cloud"}


@pytest.fixture(scope="module")
def model() -> Model:
    model = language_model("ctrl", tuple(TEXTS), dropout=0.0, attention_dropout=0.0, init_std=0.02)
    tokenizer, end = model.required_tokenizer, model.required_tokenizer.id_of("sep")
    assert end is not None
    prefixes = [control_prefix(tokenizer, code) for code in TEXTS]
    texts = [encoding.ids for encoding in tokenizer.encode_plain(list(TEXTS.values()))]
    batch = Batch.pack([[*before, *ids, end] for before, ids in zip(prefixes, texts, strict=True)])
    chosen = [start + i for start, before, ids in zip((0, int(batch.cu_seqlens[1])), prefixes, texts, strict=True)
              for i in range(len(before) - 1, len(before) + len(ids))]  # fmt: skip
    chosen_m = torch.tensor(chosen)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(120):
        loss = model.network.mask_loss(model.network(batch), chosen_m, batch.ids[chosen_m + 1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert float(loss.detach()) < 0.5
    return model


@pytest.mark.parametrize("code", TEXTS)
def test_a_code_gives_its_text(model: Model, code: str) -> None:
    text, (other,) = TEXTS[code], set(TEXTS) - {code}
    for options in ({"temperature": 0.0}, {"seed": 4, "top_p": 0.9}, {"beams": 3}):
        generated = model.generate("", control=code, **options)[0]
        assert (generated.text.strip(), generated.ended) == (text, True)
    begun = text.partition(" ")[0]
    assert str(model.generate(begun, control=code, temperature=0)[0]) == text
    (ranking,) = model.attribute(text)
    assert ranking[0].code == code
    assert ranking[0].probability > 0.99
    own, wrong = (model.perplexity(text, control=which).perplexity for which in (code, other))
    assert own < 1.2 < 1.6 < wrong
