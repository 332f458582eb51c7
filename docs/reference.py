"""The pages of verbs and settings, made from the code: options come from the commands, settings from the fields of
their sections (`setting`, `axis`)."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

BOUNDS = {"Above": "> {low}", "AtLeast": ">= {low}", "AtMost": "<= {high}"}


def cell(text: object) -> str:
    """A text as a cell of a table."""
    return " ".join(str(text).replace("|", "\\|").split())


def row(*cells: object) -> str:
    return f"| {' | '.join(map(cell, cells))} |"


def entry(key: str, kind: str, default: object, meaning: str) -> str:
    """A row of an option or a setting; a phone shows the first two columns."""
    return row(key, meaning, kind, default)


def prose(text: str) -> str:
    """Text as Markdown: what is outside of code has no tags."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else part.replace("<", "&lt;").replace("*", "\\*") for part in parts)


# Verbs


def verbs_page() -> str:
    """Every verb with its arguments and options."""
    from typer.main import get_command

    from bertree.cli.command import PANELS
    from bertree.cli.main import app

    tree: Any = get_command(app)
    lines = [
        "# Verbs and options",
        "",
        "Every verb with all its options, as `bertree VERB --help` shows them. [The command line](cli.md) says what "
        "they have in common, and what `--json` prints.",
    ]
    for panel in PANELS:
        lines += ["", f"## {panel}"]
        for name in tree.list_commands(None):
            command = tree.commands[name]
            for verb, each in getattr(command, "commands", {"": command}).items():
                if panel in (command.rich_help_panel, each.rich_help_panel):
                    lines += ["", f"### {f'{name} {verb}'.strip()}", "", *verb_lines(each)]
    return "\n".join(lines) + "\n"


def verb_lines(command: Any) -> Iterator[str]:
    from bertree.cli.options import TASKS_HERE
    from bertree.tasks.registry import task_help

    for paragraph in command.help.replace("\\[", "[").split("\n\n"):
        example = re.fullmatch(r"\[dim\](.*)\[/dim\]", paragraph, re.DOTALL)
        yield f"```text\n{example[1]}\n```\n" if example else prose(re.sub(r"\[/?\w+\]", "", paragraph)) + "\n"
    yield entry("argument or option", "type", "default", "meaning")
    yield row(*["---"] * 4)
    for option in command.params:
        argument = option.param_type_name == "argument"
        names = [option.metavar or option.name.upper()] if argument else [*option.opts, *option.secondary_opts]
        kind = option.type_descriptor.annotation
        bounds = [
            f"{sign} {limit:,.10g}" for sign, limit in ((">=", option.min), ("<=", option.max)) if limit is not None
        ]
        default = option.show_default if isinstance(option.show_default, str) else option.default
        shown = "required" if option.required else "" if default in (None, False, "", ()) else default
        meaning = prose((option.help or "").replace(TASKS_HERE, task_help()).replace("\\[", "["))
        yield entry(", ".join(f"`{name}`" for name in names), ", ".join([type_name(kind), *bounds]), shown, meaning)


def type_name(kind: Any) -> str:
    """A type in words of the command line and of recipes."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(type_name(each) for each in arguments if each is not type(None))
    if origin in (list, tuple):
        return f"list of {type_name(arguments[0])}"
    names = {str: "text", int: "integer", float: "number", bool: "true or false"}
    return names.get(kind, getattr(kind, "__name__", str(kind)).lower())


# Settings


def settings_page() -> str:
    """Every setting of every run."""
    from bertree.config.sections import OptimSettings, Phase, ScaleSettings, ScheduleSettings
    from bertree.embeddings.tuner import PoolingSettings
    from bertree.finetuning import config as finetuning
    from bertree.model.architecture import AXES, TYPES
    from bertree.objectives.embedding_losses import LOSSES
    from bertree.objectives.pretraining import TERMS
    from bertree.pretraining.sections import DataSettings, DistillSettings, PretrainingRunSettings
    from bertree.tasks.registry import TASKS
    from bertree.tasks.task import task_options

    lines = [
        "# Settings",
        "",
        "Every key of a recipe and of the other training runs, with its type, bounds, default and meaning.",
        "",
        "Set one as `key=value` on the command line ([grammar](cli.md#grammar)), as a keyword in Python, or in a TOML "
        "file. Recipes of [pretraining](pretraining.md) and [distillation on text](distillation.md) have the sections "
        "of the first part. [Fine-tuning](finetuning.md), [distillation on a task](distillation.md) and training of "
        "[sentence vectors](sentences.md) have those of the second; keys of `optim` and `run` that it does not list "
        "are those of the first.",
        "",
        "## Recipes",
    ]
    recipe: dict[str, Any] = {"data": DataSettings, "optim": OptimSettings, "schedule": ScheduleSettings}
    recipe |= {"phases.0": Phase, "run": PretrainingRunSettings, "scale": ScaleSettings, "distill": DistillSettings}
    for name, section in recipe.items():
        lines += section_lines(name, name, section)
    terms = [
        setting(f"objective.{t.name}", "number, >= 0", t.weight, f"weight of the {t.label}") for t in TERMS.values()
    ]
    lines += [*heading("objective", "Weights of the terms of the loss; 0 leaves one out."), *terms]
    lines += heading(
        "model", "The architecture. Every axis can be set; its default is that of the preset, here BERT-base's."
    )
    lines += [
        setting("model.preset", "text", "", "name of a preset; in a recipe with `distill` also half"),
        setting("model.start", "text", "", "model folder whose weights training starts from"),
    ]
    for name, kind in TYPES.items():
        about = AXES[name].metadata["meaning"] if name in AXES else "kind of encoder: transformer, bilstm or lstm"
        bounds = [bound_of_axis(b) for b in (AXES[name].metadata["bounds"] if name in AXES else ())]
        default = shown(AXES[name].default) if name in AXES else "transformer"
        lines.append(
            setting(f"model.{name}", ", ".join(filter(None, [type_name(kind), *bounds])), default, prose(about))
        )
    lines += ["", "## Fine-tuning and sentence vectors"]
    tuned: dict[str, Any] = {"train": finetuning.TrainSettings, "readout": finetuning.ReadoutSettings}
    tuned |= {"optim": finetuning.FineTuneOptimSettings, "run": finetuning.FineTuneRunSettings}
    tuned |= {"distill": finetuning.TaskDistillSettings, "vector": PoolingSettings}
    for name, section in tuned.items():
        lines += section_lines(name, f"{name} of fine-tuning" if name in recipe else name, section)
    lines += heading("task", "Settings of tasks.")
    declared: dict[str, tuple[Field[Any], Any, list[str]]] = {}
    for task in [entry.task for entry in TASKS.values()]:
        for name in task_options(task):
            field = next(each for each in fields(task) if each.name == name)
            declared.setdefault(f"task.{name}", (field, get_type_hints(type(task))[name], []))[2].append(task.name)
    for key, (field, kind, tasks) in declared.items():
        lines.append(field_setting(key, field, kind, f" ({', '.join(tasks)})" if len(tasks) < len(TASKS) else ""))
    for loss in LOSSES.values():
        if own := fields(loss):
            lines += heading(f"loss of {loss.name}", prose(str(inspect.getdoc(loss))))
            hints = get_type_hints(loss, include_extras=True)
            lines += [field_setting(f"loss.{field.name}", field, hints[field.name]) for field in own]
    return "\n".join(lines) + "\n"


def heading(title: str, about: str) -> list[str]:
    return ["", f"### {title}", "", about]


def setting(key: str, kind: str, default: object, meaning: str) -> str:
    """A setting with a heading of its own, by which the search finds it."""
    ending = "" if default == "" else f", default `{default}`"
    return f"\n#### {key}\n\n{meaning}<br>\n*{kind}{ending}*"


def section_lines(name: str, title: str, section: Any) -> list[str]:
    """The fields of a section; of one that inherits, those it declares itself."""
    hints = get_type_hints(section, include_extras=True)
    own = vars(section)["__annotations__"] if title != name else hints
    rows = [
        field_setting(f"{name}.{field.name}", field, hints[field.name])
        for field in fields(section)
        if field.name in own
    ]
    return [*heading(title, prose(str(inspect.getdoc(section)))), *rows]


def field_setting(key: str, field: Field[Any], kind: Any, more: str = "") -> str:
    base, *bounds = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    described = [type_name(base), *(bound_of(bound) for bound in bounds)]
    return setting(
        key, ", ".join(filter(None, described)), shown(field.default), prose(field.metadata["meaning"]) + more
    )


def bound_of(bound: Any) -> str:
    name = type(bound).__name__
    if name == "OneOf":
        return "one of " + ", ".join(f"`{option}`" for option in bound.options if option)
    if name == "Share":
        return "0 to 1" if bound.closed else "0 to 1, less than 1"
    return BOUNDS[name].format(**vars(bound))


def bound_of_axis(bound: Any) -> str:
    """The bound of an axis: a function, or a value with its options or its limit."""
    if options := getattr(bound, "options", ()):
        many = "" if type(bound).__name__ == "one_of" else " or more, divided by commas,"
        return f"one{many} of " + ", ".join(f"`{each}`" for each in options)
    names = {"positive": ">= 1", "not_negative": ">= 0", "above_zero": "> 0", "probability": "0 to 1, less than 1"}
    return names.get(getattr(bound, "__name__", ""), "")


def shown(value: Any) -> str:
    if value is None or value == "" or value is MISSING:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return (
        f"{value:g}"
        if isinstance(value, float)
        else f"[{', '.join(map(str, value))}]"
        if isinstance(value, tuple)
        else str(value)
    )
