"""bertree: the BERT family as one design space. See `bertree --help` and docs/python.md.

Importing this package loads nothing heavy: torch is imported with the first name that needs it.
"""

import os
from typing import TYPE_CHECKING, Any

from bertree.version import __version__

# On ARM, torch's oneDNN writes /tmp/perf-PID.map for a profiler unless it is told not to, before torch is imported.
if not {"ONEDNN_JIT_PROFILE", "DNNL_JIT_PROFILE"} & os.environ.keys():
    os.environ["ONEDNN_JIT_PROFILE"] = "0"

if TYPE_CHECKING:
    from bertree.advice.advise import advise
    from bertree.comparison.compare import compare
    from bertree.comparison.glue import glue
    from bertree.comparison.info import info, presets
    from bertree.data.prepare import prepare, train_tokenizer
    from bertree.data.preview import show_batch
    from bertree.distillation.distill import distill
    from bertree.embeddings.clustering import map_index
    from bertree.embeddings.embed import embed_file
    from bertree.embeddings.evaluate import evaluate_embeddings
    from bertree.embeddings.mine_files import cluster_texts, find_pairs
    from bertree.embeddings.similar import similar
    from bertree.embeddings.train import train_embeddings
    from bertree.errors import BertreeWarning, UserError
    from bertree.finetuning.evaluate import evaluate
    from bertree.finetuning.features import write_features
    from bertree.finetuning.finetune import finetune
    from bertree.inference.layer_report import layers
    from bertree.inference.load import Run, convert, load
    from bertree.inference.model import Model
    from bertree.model.presets import register_preset
    from bertree.objectives.embedding_losses import EmbeddingLoss, register_loss
    from bertree.objectives.pretraining import register_objective
    from bertree.pretraining.adapt import adapt
    from bertree.pretraining.plan import plan
    from bertree.pretraining.pretrain import pretrain
    from bertree.pretraining.recipe import recipe, recipes
    from bertree.search.index import Index
    from bertree.search.postgres.index import PostgresIndex
    from bertree.search.questions import evaluate_search, mine_negatives
    from bertree.serve.launch import start_server
    from bertree.study.compare import compare_studies
    from bertree.study.execute import run_study
    from bertree.study.load import studies
    from bertree.study.report import study_report
    from bertree.tasks.registry import register_task
    from bertree.tasks.text import TextTask
    from bertree.text.tokenizer import Tokenizer
    from bertree.verification.verify import verify

# Name -> the module it lives in.
_HOMES = {
    "BertreeWarning": "errors",
    "EmbeddingLoss": "objectives.embedding_losses",
    "Index": "search.index",
    "Model": "inference.model",
    "PostgresIndex": "search.postgres.index",
    "Run": "inference.load",
    "TextTask": "tasks.text",
    "Tokenizer": "text.tokenizer",
    "UserError": "errors",
    "adapt": "pretraining.adapt",
    "advise": "advice.advise",
    "cluster_texts": "embeddings.mine_files",
    "compare": "comparison.compare",
    "compare_studies": "study.compare",
    "convert": "inference.load",
    "distill": "distillation.distill",
    "embed_file": "embeddings.embed",
    "evaluate": "finetuning.evaluate",
    "evaluate_embeddings": "embeddings.evaluate",
    "evaluate_search": "search.questions",
    "find_pairs": "embeddings.mine_files",
    "finetune": "finetuning.finetune",
    "glue": "comparison.glue",
    "info": "comparison.info",
    "layers": "inference.layer_report",
    "load": "inference.load",
    "map_index": "embeddings.clustering",
    "mine_negatives": "search.questions",
    "plan": "pretraining.plan",
    "prepare": "data.prepare",
    "presets": "comparison.info",
    "pretrain": "pretraining.pretrain",
    "recipe": "pretraining.recipe",
    "recipes": "pretraining.recipe",
    "register_loss": "objectives.embedding_losses",
    "register_objective": "objectives.pretraining",
    "register_preset": "model.presets",
    "register_task": "tasks.registry",
    "run_study": "study.execute",
    "show_batch": "data.preview",
    "similar": "embeddings.similar",
    "start_server": "serve.launch",
    "studies": "study.load",
    "study_report": "study.report",
    "train_embeddings": "embeddings.train",
    "train_tokenizer": "data.prepare",
    "verify": "verification.verify",
    "write_features": "finetuning.features",
}

__all__ = [
    "BertreeWarning",
    "EmbeddingLoss",
    "Index",
    "Model",
    "PostgresIndex",
    "Run",
    "TextTask",
    "Tokenizer",
    "UserError",
    "__version__",
    "adapt",
    "advise",
    "cluster_texts",
    "compare",
    "compare_studies",
    "convert",
    "distill",
    "embed_file",
    "evaluate",
    "evaluate_embeddings",
    "evaluate_search",
    "find_pairs",
    "finetune",
    "glue",
    "info",
    "layers",
    "load",
    "map_index",
    "mine_negatives",
    "plan",
    "prepare",
    "presets",
    "pretrain",
    "recipe",
    "recipes",
    "register_loss",
    "register_objective",
    "register_preset",
    "register_task",
    "run_study",
    "show_batch",
    "similar",
    "start_server",
    "studies",
    "study_report",
    "train_embeddings",
    "train_tokenizer",
    "verify",
    "write_features",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        from bertree.errors.arguments import checks_arguments

        value = getattr(import_module(f"bertree.{_HOMES[name]}"), name)
        if not isinstance(value, type):
            value = checks_arguments(value)
            value.__module__ = __name__  # so that pickle finds this function, as `multiprocessing` needs it
        globals()[name] = value
        return value
    from difflib import get_close_matches

    near = get_close_matches(name, __all__, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    raise AttributeError(f"module 'bertree' has no attribute '{name}'{hint}")


def __dir__() -> list[str]:
    return __all__
