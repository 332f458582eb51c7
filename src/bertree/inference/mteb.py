"""The interface of sentence-transformers, as mteb calls it.

mteb calls `encode` with batches under the key "text" and keywords of its own (the task, its split, a batch size), and
compares vectors of numpy or torch. So a model can be passed to `mteb.evaluate`; mteb is imported only when it asks for
the metadata of the model.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from bertree.errors import UserError
from bertree.inference.embedding import embed_all, shorten
from bertree.inference.loaded import LoadedModel
from bertree.text.cleaning import replace_surrogates

# Keywords of sentence-transformers' `encode` that would change the result, and the only value they may have here.
FIXED = {"output_value": "sentence_embedding", "precision": "float32", "convert_to_numpy": True}
SYNONYMS = {"document": "passage", "passage": "document"}  # two names for one kind of text


def check_keywords(keywords: Mapping[str, Any]) -> None:
    """Refuse keywords of `encode` that would change the result; others (batch_size ...) are ignored."""
    for name, usual in FIXED.items():
        if keywords.get(name, usual) not in (usual, None):
            raise UserError(f"encode: {name}={keywords[name]!r} is not supported; leave it out")


def extract_texts(inputs: object) -> list[str]:
    """Return the texts of `encode`'s input: one text, a sequence, a column, or batches with a key "text"."""
    if isinstance(inputs, str | Mapping):
        inputs = [inputs]
    if not isinstance(inputs, Iterable):
        raise UserError(f"encode: takes texts or batches of them, not {type(inputs).__name__}")
    return [text for item in inputs for text in _item_texts(item)]


def _item_texts(item: object) -> Iterator[str]:
    """Yield a text, or those of a batch under "text", where mteb's loaders join title and body."""
    if isinstance(item, Mapping):
        if "text" not in item:
            raise UserError(f"encode: a batch needs the key 'text'; there are: {', '.join(map(str, item)) or 'none'}")
        texts = [item["text"]] if isinstance(item["text"], str) else item["text"]
    else:
        texts = [item]
    for text in texts:
        if not isinstance(text, str):
            raise UserError(f"encode: takes texts or batches of them, not {type(text).__name__} {text!r:.40}")
        yield replace_surrogates(text)


def encode(
    model: LoadedModel,
    sentences: object,
    prompt_name: str | None,
    prompt: str | None,
    dimensions: int | None,
    normalize: bool,
) -> Tensor:
    """Return the vectors of `encode`'s input on the CPU. `prompt` is a text to put first, instead of a named prompt."""
    texts = extract_texts(sentences)
    if prompt is not None:
        texts, prompt_name = [prompt + text for text in texts], ""
    vectors_sd = shorten(torch.from_numpy(embed_all(model, texts, prompt=prompt_name)), dimensions, normalize)
    return (vectors_sd[0] if isinstance(sentences, str) else vectors_sd).contiguous()


def are_texts(inputs: Any) -> bool:
    """Return whether inputs are texts rather than vectors."""
    return isinstance(inputs, str) or (
        isinstance(inputs, list | tuple) and all(isinstance(text, str) for text in inputs)
    )


def choose_prompt(prompts: Iterable[str], metadata: Any, prompt_type: Any) -> str | None:
    """Return the name of the model's most specific prompt for a task of mteb."""
    available = set(prompts)
    side = getattr(prompt_type, "value", prompt_type)
    task, family = getattr(metadata, "name", None), getattr(metadata, "type", None)
    sides = [side, SYNONYMS.get(str(side))] if side else []
    names = [f"{task}-{side}", task, f"{family}-{side}", family, *sides]
    return next((str(name) for name in names if isinstance(name, Hashable) and name in available), None)


def model_metadata(model: LoadedModel) -> Any:
    """Return mteb's metadata of a model; AttributeError without mteb, so that `hasattr` is False."""
    try:
        from mteb.models.model_meta import ModelMeta, ScoringFunction  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise AttributeError("mteb_model_meta: mteb is not installed") from None
    name = model.name
    return ModelMeta.create_empty(
        {
            "name": name if name.count("/") == 1 else f"bertree/{name.replace('/', '-')}",  # mteb expects OWNER/NAME
            "revision": model.digest[:40],
            "embed_dim": model.dimension,
            "max_tokens": model.max_length,
            "n_parameters": sum(parameter.numel() for parameter in model.parameters()),
            "framework": ["PyTorch"],
            "similarity_fn_name": ScoringFunction(model.vector.similarity),
            "open_weights": True,
            "use_instructions": bool(model.vector.prompts),
        }
    )
