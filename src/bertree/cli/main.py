"""The command line: the application, its verbs, and how errors become one line and an exit code."""

import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup
from typer.main import get_group

from bertree.cli.command import PANELS
from bertree.console import showing, spell_settings
from bertree.errors import BertreeWarning, UserError
from bertree.scale.launch import launched
from bertree.train.signals import interrupt_once
from bertree.version import __version__

ERROR_WAIT = 60.0  # seconds that other ranks wait for rank 0 to print why the run has failed

# The modules of this package, and the verbs that each registers. To build all verbs takes 0.1 s, so a module is
# imported, and its verbs are built, when one of them is called or all are listed.
VERBS = {
    "model": ("info", "layers", "fill", "convert", "verify", "advise"),
    "pretrain": ("adapt", "pretrain", "plan", "recipe"),
    "data": ("prepare", "tokenizer", "store"),
    "distill": ("distill", "compare"),
    "finetune": ("finetune", "evaluate", "predict", "features", "glue"),
    "left_to_right": ("generate", "perplexity", "attribute"),
    "embeddings": ("embed", "similar", "pairs", "cluster", "embeddings"),
    "serve": ("serve", "mcp", "deploy"),
    "index": ("index",),
    "study": ("study",),
}


class VerbTable(Mapping[str, Any]):
    """The verbs by name; those of a module are built together, when one of them is looked up."""

    def __init__(self) -> None:
        self._modules = {name: module for module, names in VERBS.items() for name in names}
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            verbs = typer.Typer(rich_markup_mode="rich")
            import_module(f"bertree.cli.{self._modules[name]}").register(verbs)
            self._built |= get_group(verbs).commands
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


class PanelGroup(TyperGroup):
    """The application: its verbs are built when they are needed, and listed by panel."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = VerbTable()  # type: ignore[assignment]  # no verb is added later

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the verbs in the order of the panels."""
        panels = {name: getattr(command, "rich_help_panel", None) for name, command in self.commands.items()}
        return sorted(self.commands, key=lambda name: PANELS.index(panels[name]) if panels[name] in PANELS else 0)


app = typer.Typer(
    name="bertree",
    cls=PanelGroup,
    help="The BERT family as one design space: from a folder of text to an encoder of your own.",
    epilog="Start with: bertree info",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        print(f"bertree {__version__}")
        raise typer.Exit


def main() -> None:
    """Run a verb. A mistake of the user becomes one line on standard error and exit code 2.

    Of several processes that were started together only the first prints, except for errors of a single rank."""
    if launched().rank:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    warnings.showwarning = _print_warning  # type: ignore[assignment]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character shows another
    warnings.simplefilter("always", BertreeWarning)
    try:
        with showing(), interrupt_once():
            code = app(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except UserError as error:
        _fail(str(error), of_one_rank=getattr(error, "of_one_rank", False), code=error.exit_code)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            sys.stderr.close()
            sys.exit(141)
        _fail(f"{error.filename or 'system'}: {error.strerror or error}")
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        # A mistake in the options: typer's own exceptions, which it does not export.
        if not error.format_message():
            sys.exit(2)  # the help was shown because there were no arguments
        context, option = getattr(error, "ctx", None), getattr(error, "option_name", "")
        message, verb = error.format_message(), context.command_path if context else "bertree"
        if option.startswith("--") and context and any(param.name == "settings" for param in context.command.params):
            message += f"; settings are written as {option[2:].replace('-', '_')}=VALUE"
        _fail(f"{message} (see {verb} --help)")
    except KeyboardInterrupt:
        sys.exit(130)


def _fail(line: str, of_one_rank: bool = False, code: int = 2) -> NoReturn:
    launch = launched()
    if of_one_rank or not launch.rank:
        print(f"bertree: {_one_line(line)}", file=sys.stderr, flush=True)
    elif launch.job:  # torchrun or srun ends all processes when one has failed: rank 0 prints the reason first
        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(code))
        time.sleep(ERROR_WAIT)
    sys.exit(code)


def _one_line(text: str) -> str:
    """Put a message on one line: names of files may hold line ends."""
    return " ".join(text.split())


def _print_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    if issubclass(category, BertreeWarning):
        print(f"bertree: note: {_one_line(spell_settings(str(message)))}", file=sys.stderr)
