"""`encode` as sentence-transformers has it and mteb calls it.

mteb calls `encode` with batches under the key "text" and keywords of its own (the task, its split, a batch size), and
compares vectors of numpy or torch. All of that is understood here, so that a model can be passed to `mteb.evaluate`;
mteb is imported only when it asks for its model metadata. It must not find a method `predict`, or it would take the
model for a cross-encoder (see `TaskModel`).
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch

from bertree.errors import UserError
from bertree.inference.embedding import Vectors
from bertree.inference.similarity import SIMILARITIES, check_vectors
from bertree.model.pooling import PoolingConfig
from bertree.text.cleaning import replace_surrogates

# Keywords of sentence-transformers' `encode` that would change the result, and the only value they may have here.
FIXED = {"output_value": "sentence_embedding", "precision": "float32", "convert_to_numpy": True}
SAME = {"document": "passage", "passage": "document"}  # two names for one kind of text


def extract_texts(inputs: object) -> list[str]:
    """Return the texts of `encode`'s input: one text, a sequence, a column, or batches with a key "text"."""
    if isinstance(inputs, str | Mapping):
        inputs = [inputs]
    if not isinstance(inputs, Iterable):
        raise UserError(f"encode: takes texts or batches of them, not {type(inputs).__name__}")
    return [text for item in inputs for text in _item(item)]


def _item(item: object) -> Iterator[str]:
    """Yield a text, or those of a batch under "text", where mteb's loaders put title and body together."""
    if isinstance(item, Mapping):
        if "text" not in item:
            raise UserError(f"encode: a batch needs the key 'text'; there are: {', '.join(map(str, item)) or 'none'}")
        found = item["text"]
        texts = [found] if isinstance(found, str) else found
    else:
        texts = [item]
    for text in texts:
        if not isinstance(text, str):
            raise UserError(f"encode: takes texts or batches of them, not {type(text).__name__} {text!r:.40}")
        yield replace_surrogates(text)


def choose_prompt(known: Iterable[str], metadata: Any, prompt_type: Any) -> str | None:
    """Return the name of the model's most specific prompt for a task of mteb."""
    known = set(known)
    side = getattr(prompt_type, "value", prompt_type)
    task, family = getattr(metadata, "name", None), getattr(metadata, "type", None)
    sides = [side, SAME.get(str(side))] if side else []
    names = [f"{task}-{side}", task, f"{family}-{side}", family, *sides]
    return next((str(name) for name in names if name in known), None)


def to_vectors(given: Any) -> Vectors:
    """Convert one vector or many, of numpy or torch, to rows."""
    if isinstance(given, torch.Tensor):
        given = given.detach().float().cpu().numpy()
    found: Vectors = check_vectors(given).numpy()
    return found


def pairwise_similarity(a: Vectors, b: Vectors, by: str) -> Vectors:
    """Return the similarity of the first of `a` to the first of `b`, and so on."""
    one, other = check_vectors(a), check_vectors(b)
    if one.shape != other.shape:
        raise UserError(f"vectors of shapes {tuple(one.shape)} and {tuple(other.shape)} cannot be compared in pairs")
    # The measures of SIMILARITIES, for rows in pairs.
    found = {
        "cosine": lambda: torch.nn.functional.cosine_similarity(one, other),
        "dot": lambda: (one * other).sum(1),
        "euclidean": lambda: -(one - other).norm(dim=1),
        "manhattan": lambda: -(one - other).abs().sum(1),
    }
    assert found.keys() == SIMILARITIES.keys()
    values: Vectors = found[by]().numpy()
    return values


class EmbeddingModel(Protocol):
    """What `SentenceTransformersMethods` needs of the model."""

    @property
    def vector(self) -> PoolingConfig: ...
    @property
    def dimension(self) -> int: ...
    @property
    def digest(self) -> str: ...
    @property
    def max_length(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def network(self) -> torch.nn.Module: ...
    def embed(self, texts: Iterable[str], *, prompt: str | None = None) -> Vectors: ...


class SentenceTransformersMethods:
    """Methods that sentence-transformers and mteb expect, for a model that has `embed`."""

    def encode(
        self: EmbeddingModel,
        sentences: Any,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        task_metadata: Any = None,
        prompt_type: Any = None,
        **ignored: Any,
    ) -> Any:
        """As `embed`, with the keywords of sentence-transformers and mteb. Keywords that would change the result
        are refused, others (batch_size, show_progress_bar ...) ignored.

        One text gives one vector, not a matrix with one row.
        """
        if convert_to_tensor:
            ignored.pop("convert_to_numpy", None)
        for name, usual in FIXED.items():
            if ignored.get(name, usual) not in (usual, None):
                raise UserError(f"encode: {name}={ignored[name]!r} is not known here; leave it out")
        texts = extract_texts(sentences)
        kind = prompt_name or choose_prompt(dict(self.vector.prompts), task_metadata, prompt_type)
        if prompt is not None:
            texts, kind = [prompt + text for text in texts], ""
        found = self.embed(texts, prompt=kind)
        found = found[:, :truncate_dim]
        if normalize_embeddings:
            found = torch.nn.functional.normalize(torch.from_numpy(found)).numpy()
        one = found[0] if isinstance(sentences, str) else found
        return torch.from_numpy(np.ascontiguousarray(one)) if convert_to_tensor else one

    def similarity_pairwise(self: EmbeddingModel, a: Any, b: Any) -> Vectors:
        """Return the similarity of the first of `a` to the first of `b`, and so on; texts or vectors."""
        one, other = (self.embed(extract_texts(side)) if _are_texts(side) else to_vectors(side) for side in (a, b))
        return pairwise_similarity(one, other, self.vector.similarity)

    @property
    def mteb_model_meta(self: EmbeddingModel) -> Any:
        """Metadata for mteb; AttributeError without mteb, so that `hasattr` is False."""
        try:
            from mteb.models.model_meta import ModelMeta, ScoringFunction  # type: ignore[import-not-found,unused-ignore]
        except ImportError:
            raise AttributeError("mteb_model_meta: mteb is not installed") from None
        name = self.name
        known = {
            "name": name if name.count("/") == 1 else f"bertree/{name.replace('/', '-')}",  # it wants OWNER/NAME
            "revision": self.digest[:40],
            "embed_dim": self.dimension,
            "max_tokens": self.max_length,
            "n_parameters": sum(parameter.numel() for parameter in self.network.parameters()),
            "framework": ["PyTorch"],
            "similarity_fn_name": ScoringFunction(self.vector.similarity),
            "open_weights": True,
            "use_instructions": bool(self.vector.prompts),
        }
        return ModelMeta.create_empty(known)


def _are_texts(side: Any) -> bool:
    return isinstance(side, str) or (isinstance(side, list | tuple) and all(isinstance(text, str) for text in side))
