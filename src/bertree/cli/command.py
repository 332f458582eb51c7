"""Make a verb of the command line from a Python function.

`python_verb` reads the function's signature and gives the verb one option for each keyword: name, type and default come
from the signature, help text and limits from the table in `options.py`. So an option is written once, and the same name
means the same in Python and on the command line. The signature is read from the source: importing the function would
import torch, and `bertree --help` must stay fast. `verb` registers a function that declares its options itself, for
verbs that call methods of a model or an index.
"""

import ast
import functools
import gc
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from bertree.cli.options import OPTIONS, TASKS_HERE, TRAINING_OPTIONS, JsonOption, Keyword, Option, QuietOption
from bertree.console import showing, spell_settings, spelled_as
from bertree.errors import BertreeWarning, UserError
from bertree.scale.launch import launched

if TYPE_CHECKING:
    from bertree.inference.load import Run

LOOK, DATA, TRAIN, USE, SEARCH, SERVE, CHECK = PANELS = (
    "Look at models",
    "Prepare data",
    "Train",
    "Use a model",
    "Search",
    "Serve",
    "Check",
)
PACKAGE = Path(__file__).parents[1]
# Keywords of Python: settings are arguments, --quiet turns progress off, and callbacks are functions.
NOT_OPTIONS = ("overrides", "progress", "on_step", "on_evaluation", "on_save")


class VerbCommand(TyperCommand):
    """A command whose help lists the registered tasks (the registry is imported only when help is shown), and whose
    options may have a value that need not be written."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; options that may be written without a value get theirs."""
        bare = {f"--{name.replace('_', '-')}": option.bare for name, option in OPTIONS.items() if option.bare}
        completed = []
        for argument, following in zip(args, [*args[1:], "-"], strict=False):
            completed.append(argument)
            if argument in bare and (following.startswith("-") or "=" in following):
                completed.append(bare[argument])
        return super().parse_args(ctx, completed)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help text."""
        if options := [option for option in self.params if TASKS_HERE in (vars(option).get("help") or "")]:
            from bertree.tasks.registry import task_help

            for option in options:
                vars(option)["help"] = vars(option)["help"].replace(TASKS_HERE, task_help())
        super().format_help(ctx, formatter)


class OneDeviceCommand(VerbCommand):
    """A verb that refuses to be one of several processes, which would all do the same and write to the same folder."""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb."""
        if (size := launched().size) > 1:
            raise UserError(
                f"{ctx.command_path}: runs on one device, but {size} processes were started; start it without torchrun "
                "or srun"
            )
        return super().invoke(ctx)


def read_keywords(function: str) -> tuple[list[Keyword], str]:
    """Return the parameters of a function ("finetuning.finetune.finetune"), and the name of its ** parameter."""
    module, _, name = function.rpartition(".")
    source = Path(PACKAGE, *module.split(".")).with_suffix(".py").read_text(encoding="utf-8")
    match = re.search(rf"^def {name}\(.*?\) -> [^\n]*:\n", source, re.MULTILINE | re.DOTALL)
    assert match is not None, f"{function}: has no signature"
    definition = ast.parse(match[0] + "    ...").body[0]
    assert isinstance(definition, ast.FunctionDef)
    arguments = definition.args
    without_default: list[ast.expr | None] = [None] * (len(arguments.args) - len(arguments.defaults))
    positional = zip(arguments.args, [*without_default, *arguments.defaults], strict=True)
    keywords = []
    for argument, default in [*positional, *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]:
        assert argument.annotation is not None, f"{function}: {argument.arg} has no type"
        value = inspect.Parameter.empty if default is None else ast.literal_eval(default)
        keywords.append(Keyword(argument.arg, ast.unparse(argument.annotation), value))
    return keywords, arguments.kwarg.arg if arguments.kwarg else ""


def import_quickly(module: str) -> ModuleType:
    """Import a module of the package and what it needs, without searching all of it for garbage again and again: with
    PyTorch that is a tenth of the time until a verb begins. What was imported stays, so it is not searched later."""
    name = f"bertree.{module}"
    if name in sys.modules or not gc.isenabled():
        return import_module(name)
    gc.disable()
    try:
        return import_module(name)
    finally:
        gc.freeze()
        gc.enable()


Show = Callable[[Any, SimpleNamespace], None]


def python_verb(
    app: typer.Typer,
    function: str,
    arguments: Sequence[str],
    *,
    name: str | None = None,
    panel: str | None = None,
    own: dict[str, Option] | None = None,
    help_text: str = "",
    only_here: Sequence[Keyword] = (),
    on_ranks: bool = False,
    json: bool = True,
) -> Callable[[Show], Show]:
    """Make a verb of a Python function; the decorated function prints the result, and its docstring is the help.

    `arguments` are the parameters that are written without an option, in their order; `settings` means `key=value`.
    `own` describes options that mean something else here than in the table; `only_here` are options that change what is
    printed and are not passed on. The decorated function gets the result and the values of all options, with `as_json`.
    """
    keywords, rest = read_keywords(function)
    table = OPTIONS | (own or {})
    declared = {keyword.name: keyword for keyword in keywords if keyword.name not in NOT_OPTIONS}
    parameters = []
    for argument in arguments:
        keyword = declared.get(argument) or Keyword("settings", "Sequence[str]", ())
        kind = list[str] if keyword.repeated else str
        parameters.append(_parameter(keyword, table[argument].argument(keyword), kind))
    parameters += [
        _parameter(keyword, table[keyword.name].option(keyword), keyword.type)
        for keyword in (*declared.values(), *only_here)
        if keyword.name not in arguments
    ]
    trains = rest == "settings"
    if trains:
        parameters += [
            _parameter(keyword := Keyword(option, "str", None), described.option(keyword), str)
            for option, described in TRAINING_OPTIONS.items()
        ]
    if json:
        parameters.append(_keyword_only("as_json", JsonOption))

    def register(show: Show) -> Show:
        def run(**options: Any) -> None:
            for keyword in declared.values():
                if keyword.repeated and options[keyword.name] is None:
                    options[keyword.name] = ()
            values = {key: options[key] for key in declared}
            if "settings" in options:
                values["overrides"] = list(options["settings"] or ())
            if trains:
                chosen = [(key, options[key]) for key in TRAINING_OPTIONS if options[key] is not None]
                values["overrides"] += [f"run.{key}={value}" for key, value in chosen]
            module, _, attribute = function.rpartition(".")
            result = getattr(import_quickly(module), attribute)(**values)
            show(result, SimpleNamespace(**{"as_json": False, **options}))

        run.__name__, run.__doc__ = show.__name__, inspect.getdoc(show)
        ordered = sorted(parameters, key=lambda parameter: parameter.default is not inspect.Parameter.empty)
        keyword_only = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in ordered]
        vars(run)["__signature__"] = inspect.Signature(keyword_only)
        verb(app, name, help_text, panel=panel, on_ranks=on_ranks)(run)
        return show

    return register


def _parameter(keyword: Keyword, info: Any, kind: Any) -> inspect.Parameter:
    optional = not keyword.required and (keyword.default is None or keyword.repeated)
    default = inspect.Parameter.empty if keyword.required else None if optional else keyword.default
    return _keyword_only(keyword.name, Annotated[(kind | None) if optional else kind, info], default)


def _keyword_only(name: str, annotation: Any, default: Any = False) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def verb(
    app: typer.Typer,
    name: str | None = None,
    help_text: str = "",
    *,
    panel: str | None = None,
    on_ranks: bool = False,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as a verb: with `--quiet`, and without progress lines on standard output under `--json`.

    `help_text` is shown in place of the function's docstring, where it is put together from registries. `on_ranks`:
    processes that were started together share its work; any other verb refuses to be one of them."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(function)
        spellings = {name: f"--{name.replace('_', '-')}" for name in signature.parameters}

        @functools.wraps(function)
        def run(*args: Any, quiet: bool = False, **options: Any) -> None:
            shown = not quiet and not options.get("as_json")
            if "model" in options:
                import_quickly("inference.load")
            with showing(shown), spelled_as(spellings), warnings.catch_warnings():
                if quiet:
                    warnings.simplefilter("ignore", BertreeWarning)
                try:
                    function(*args, **options)
                except UserError as error:
                    error.args = (spell_settings(str(error)),)
                    raise

        parameters = [*signature.parameters.values(), _keyword_only("quiet", QuietOption)]
        vars(run)["__signature__"] = signature.replace(parameters=parameters)
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        run.__doc__ = _flow(help_text or inspect.getdoc(function) or "")
        app.command(name, cls=VerbCommand if on_ranks else OneDeviceCommand, rich_help_panel=panel)(run)
        return function

    return register


def _flow(text: str) -> str:
    """Join the lines of each paragraph, so that help is as wide as the terminal; examples keep their lines."""
    parts = text.split("\n\n")
    return "\n\n".join(part if part.startswith("[dim]") else " ".join(part.split()) for part in parts)


def print_json(value: Any) -> None:
    """Print JSON on standard output."""
    from bertree.files.formats import json_text

    print(json_text(value, 2))


def end_run(run: "Run", as_json: bool, show: "Callable[[Run], None]") -> None:
    """Print the result of a training run and exit with 0, with 128 and the signal that ended it, or with 1."""
    if as_json:
        state = {"complete": run.complete, "learned": run.learned, "signal": run.signal}
        print_json({"folder": str(run.folder)} | state | {"metrics": run.metrics})
    elif run.signal is None:
        show(run)
    if not run.complete:
        raise typer.Exit(1 if run.signal is None else 128 + run.signal)
