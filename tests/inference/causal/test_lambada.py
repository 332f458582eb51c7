"""The last word of a passage: all of its tokens must be right."""

import json
import math
from pathlib import Path

import pytest
import torch

from bertree.batch import Batch
from bertree.errors import UserError
from bertree.inference.causal import perplexity
from tests.support.language_models import language_model

PASSAGES = ["the boat of a yellow", "Ada is in Turin", "to the lighthouses", "a\nlamp"]


def test_accuracy_and_perplexity_are_those_of_greedy_decoding(tmp_path: Path) -> None:
    model = language_model("gpt2")
    tokenizer = model.required_tokenizer
    losses, passages = [], list(PASSAGES)
    for passage in PASSAGES:  # another passage ends with the word that the model predicts
        context = " ".join(passage.split()[:-1])
        ids = tokenizer.encode_plain([context])[0].ids
        likeliest = model.generate([ids], tokens=5, temperature=0, stop=False)[0].ids
        passages.append(context + " " + tokenizer.backend.decode(likeliest).partition(" ")[0])
    right = 0
    for passage in passages:
        context = " ".join(passage.split()[:-1])
        before = tokenizer.encode_plain([context])[0].ids
        target = tokenizer.encode_plain([passage])[0].ids[len(before) :]
        batch = Batch.pack([[*before, *target]])
        with torch.no_grad():
            chosen = torch.arange(len(before) - 1, len(batch.ids) - 1)
            logs = model.network.mask_logits(model.network(batch), chosen).log_softmax(1)
        losses.append(-float(logs[range(len(target)), target].sum()))
        right += logs.argmax(1).tolist() == target
    assert 0 < right < len(passages)
    predictions = model.last_words(passages)
    assert predictions.accuracy == right / len(passages)
    assert predictions.perplexity == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-4)
    path = tmp_path / "lambada.jsonl"
    path.write_text("".join(json.dumps({"text": passage}) + "\n" for passage in passages))
    assert model.last_words(path).perplexity == pytest.approx(predictions.perplexity, rel=1e-6)
    assert "8 passages" in repr(predictions)


def test_long_passages_keep_their_end() -> None:
    model = language_model("gpt2")
    words = " ".join(["the boat of"] * 30)
    predictions, cut = model.last_words([f"{words} river"]), model.last_words([f"tree {words} river"])
    assert predictions.perplexity == pytest.approx(cut.perplexity, rel=1e-6)


def test_mistakes() -> None:
    with pytest.raises(UserError, match="passage 2: has fewer than two words"):
        language_model("gpt2").last_words(["the boat", "boat"])
    with pytest.raises(UserError, match="there are no passages"):
        language_model("gpt2").last_words([])


def test_stop_words_are_left_out_of_the_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    model = language_model("gpt2")
    tokenizer = model.required_tokenizer
    never = perplexity.stop_word_ids(tokenizer)
    assert {tokenizer.backend.token_to_id(word) for word in ("the", "of")} <= set(never)
    ids = tokenizer.encode_plain(["the boat of"])[0].ids
    with torch.no_grad():
        logits = model.network.mask_logits(model.network(Batch.pack([ids])), torch.tensor([len(ids) - 1]))[0]
    ranked = logits.argsort(descending=True).tolist()
    place = next(n for n, token in enumerate(ranked) if n and tokenizer.backend.id_to_token(token).isalpha())
    passage = f"the boat of {tokenizer.backend.id_to_token(ranked[place])}"
    monkeypatch.setattr(perplexity, "stop_word_ids", lambda tokenizer: ranked[:place])
    predictions = model.last_words([passage])
    assert (predictions.accuracy, predictions.filtered_accuracy) == (0.0, 1.0)
