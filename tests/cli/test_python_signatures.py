"""The command line and Python have the same settings: names, defaults and nothing on one side only."""

import inspect
from pathlib import Path
from typing import Any

import pytest

import bertree
from bertree.cli.command import NOT_OPTIONS, read_keywords
from bertree.cli.main import app
from bertree.cli.options import TRAINING_OPTIONS
from bertree.inference.model import Model
from bertree.search.index import Index
from tests.support.command import make_tree

VERBS: dict[str, Any] = {
    "advise": bertree.advise,
    "plan": bertree.plan,
    "recipe list": bertree.recipes,
    "recipe show": bertree.recipe,
    "tokenizer train": bertree.train_tokenizer,
    "prepare": bertree.prepare,
    "store show": bertree.show_batch,
    "adapt": bertree.adapt,
    "pretrain": bertree.pretrain,
    "distill": bertree.distill,
    "finetune": bertree.finetune,
    "embeddings train": bertree.train_embeddings,
    "embeddings evaluate": bertree.evaluate_embeddings,
    "convert": bertree.convert,
    "features": bertree.write_features,
    "embed": bertree.embed_file,
    "similar": bertree.similar,
    "pairs": bertree.find_pairs,
    "cluster": bertree.cluster_texts,
    "verify": bertree.verify,
    "compare": bertree.compare,
    "layers": bertree.layers,
    "evaluate": bertree.evaluate,
    "glue": bertree.glue,
    "study run": bertree.run_study,
    "study report": bertree.study_report,
    "study compare": bertree.compare_studies,
    "info": bertree.info,
    "serve": bertree.start_server,
    "fill": Model.fill_mask,
    "generate": Model.generate,
    "perplexity": Model.perplexity,
    "attribute": Model.attribute,
    "index build": Index.build,
    "index add": Index.add,
    "index remove": Index.remove,
    "index upgrade": Index.upgrade,
    "index query": Index.search,
    "index evaluate": bertree.evaluate_search,
    "index mine": bertree.mine_negatives,
    "index export": Index.export,
}
# Of a loaded model, in Python: bertree.load(model, device=..., precision=..., tokenizer=...).
LOADING = {"model", "device", "precision", "tokenizer"}
INDEX = {"folder", "index"}  # of an opened index: Index.open, PostgresIndex.open
ONLY_COMMAND_LINE = {
    "pairs": {"duplicates"},  # what is printed
    "cluster": {"show"},
    "info": {"axes", "batch", "length", "card", "kernels", "device"},  # of the printed tables; axes are **changes
    "serve": {"api_key_file"},  # a program reads its own files
    "fill": LOADING,
    "generate": LOADING | {"file", "endless"},  # files are read by the caller; `stop` is the opposite
    "perplexity": LOADING | {"file", "format", "text", "task"},  # a file is the texts; task: Model.last_words
    "attribute": LOADING | {"file", "k"},
    "index build": LOADING - {"model"},
    "index add": LOADING | INDEX,
    "index remove": INDEX,
    "index upgrade": INDEX,
    "index query": LOADING | INDEX | {"schema", "table"},
    "index evaluate": LOADING | {"schema", "table"},
    "index mine": LOADING | {"schema", "table"},
    "index export": INDEX,
}
ONLY_PYTHON = {
    "generate": {"stop", "on_text"},
    "perplexity": {"texts"},
    "index build": {"name", "prompts", "watch"},  # watch: the progress bar of the verb
    "index add": {"watch"},
    "index remove": {"watch"},
    "index upgrade": {"watch"},
    "index export": {"watch"},
}
RENAMED = {"index build": {"out": "path"}, "index export": {"to": "address"}}
OTHER_DEFAULTS = {
    "serve": {"port"},  # in Python any free port, for tests and notebooks
    "info": {"name"},  # without it, the family tree
    "generate": {"prompts"},  # or a file
    "attribute": {"texts", "prior"},
    "index query": {"candidates"},  # None: not given, so that it is refused without --rerank
    "index evaluate": {"candidates"},
}
COMMAND_LINE_ONLY = {
    "predict",  # Model.predict; the verb reads files and standard input
    "store info",  # bertree.show_batch and PreparedStore.store
    "store verify",  # bertree.verify
    "study list",  # bertree.studies
    "study show",  # bertree.studies()[name]
    "index info",  # Index.info
    "mcp",  # a server on standard input and output
    "deploy ray",  # a server on a cluster
}


def verbs() -> dict[str, Any]:
    commands: dict[str, Any] = make_tree(app).commands  # type: ignore[attr-defined]
    groups = {name: getattr(command, "commands", None) for name, command in commands.items()}
    return {
        f"{name} {inner}" if groups[name] else name: command
        for name in commands
        for inner, command in (groups[name] or {name: commands[name]}).items()
    }


def test_every_verb_has_a_function_or_a_reason_not_to() -> None:
    assert set(verbs()) == set(VERBS) | COMMAND_LINE_ONLY


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_has_the_settings_of_its_function(verb: str) -> None:
    command = verbs()[verb]
    signature = inspect.signature(VERBS[verb]).parameters
    python = {name: parameter for name, parameter in signature.items() if name not in ("self", "cls", *NOT_OPTIONS)}
    rest = next((name for name, parameter in python.items() if parameter.kind is parameter.VAR_KEYWORD), None)
    python.pop(rest or "", None)
    renamed = RENAMED.get(verb, {})
    options = {renamed.get(option.name, option.name): option for option in command.params}
    here = {"as_json", "quiet", "help"} | ({"settings"} if rest else set())
    here |= set(TRAINING_OPTIONS) if rest == "settings" else set()
    here |= {renamed.get(name, name) for name in ONLY_COMMAND_LINE.get(verb, set())}
    assert set(options) - here == set(python) - ONLY_PYTHON.get(verb, set())
    for name in set(options) & set(python) - here - OTHER_DEFAULTS.get(verb, set()):
        default = python[name].default
        if default is inspect.Parameter.empty:
            assert options[name].required, name
        else:
            shown = options[name].default
            assert (shown if not isinstance(shown, Path) else str(shown)) == (default if default != () else None), name


@pytest.mark.parametrize("function", [name for name in VERBS if getattr(VERBS[name], "__module__", "").count(".") > 1])
def test_signatures_are_read_from_the_source(function: str) -> None:
    real = VERBS[function]
    if real.__qualname__ != real.__name__:
        return
    keywords, rest = read_keywords(f"{real.__module__.removeprefix('bertree.')}.{real.__name__}")
    parameters = inspect.signature(real).parameters
    plain = {name: p.default for name, p in parameters.items() if p.kind is not p.VAR_KEYWORD}
    assert {keyword.name: keyword.default for keyword in keywords} == plain
    assert rest == next((name for name, p in parameters.items() if p.kind is p.VAR_KEYWORD), "")
