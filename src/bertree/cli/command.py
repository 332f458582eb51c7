"""What every verb has in common: registration with `--quiet`, results as JSON, exit codes."""

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from bertree.cli.options import TASKS_HERE
from bertree.console import showing, spell_settings, spelled_as
from bertree.errors import BertreeWarning, UserError
from bertree.scale.launch import launched

if TYPE_CHECKING:
    from bertree.inference.trained_run import Run

QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print results and errors only: no progress, no notes.")
]


class VerbCommand(TyperCommand):
    """A command whose help names what is registered; the registries are imported only when help is shown."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help text."""
        if options := [option for option in self.params if TASKS_HERE in (vars(option).get("help") or "")]:
            from bertree.tasks.registry import task_help

            for option in options:
                vars(option)["help"] = vars(option)["help"].replace(TASKS_HERE, task_help())
        super().format_help(ctx, formatter)


class OneDeviceCommand(VerbCommand):
    """A verb that refuses to be one of several processes, which would all do the same and write to the same place."""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb."""
        if (size := launched().size) > 1:
            raise UserError(
                f"{ctx.command_path}: runs on one device, but {size} processes were started; start it without torchrun "
                "or srun"
            )
        return super().invoke(ctx)


def verb(
    app: typer.Typer, name: str | None = None, help_text: str = "", *, on_ranks: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as a verb: with `--quiet`, and without progress lines on standard output under `--json`.

    `help_text` is shown in place of the function's docstring, where it is put together from registries. `on_ranks`:
    processes that were started together share its work; any other verb refuses to be one of them."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(*args: Any, quiet: bool = False, **options: Any) -> None:
            shown = not quiet and not options.get("as_json")
            with showing(shown), spelled_as(spellings), warnings.catch_warnings():
                if quiet:
                    warnings.simplefilter("ignore", BertreeWarning)
                try:
                    function(*args, **options)
                except UserError as error:
                    error.args = (spell_settings(str(error)),)
                    raise

        signature = inspect.signature(function)
        spellings = {name: f"--{name.replace('_', '-')}" for name in signature.parameters}
        extra = inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=QuietOption)
        vars(run)["__signature__"] = signature.replace(parameters=[*signature.parameters.values(), extra])
        run.__annotations__ = {**function.__annotations__, "quiet": QuietOption}
        run.__doc__ = _flow(help_text or inspect.getdoc(function) or "")
        app.command(name, cls=VerbCommand if on_ranks else OneDeviceCommand)(run)
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
    from bertree.files.formats import json_text

    if as_json:
        state = {"folder": str(run.folder), "complete": run.complete, "signal": run.signal, "metrics": run.metrics}
        print(json_text(state, 2))
    elif run.signal is None:
        show(run)
    if not run.complete:
        raise typer.Exit(1 if run.signal is None else 128 + run.signal)
