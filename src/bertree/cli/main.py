"""The command line: the application, its verbs, and how errors become one line and an exit code."""

import os
import signal
import sys
import time
import warnings
from io import TextIOWrapper
from typing import Annotated, NoReturn

import typer

from bertree.cli import (
    data,
    distill,
    embeddings,
    finetune,
    index,
    left_to_right,
    model,
    pretrain,
    serve,
    study,
)
from bertree.cli.command import PanelGroup
from bertree.console import showing, spell_settings
from bertree.errors import BertreeWarning, UserError
from bertree.scale.launch import launched
from bertree.train.signals import interrupt_once
from bertree.version import __version__

ERROR_WAIT = 60.0  # seconds that other ranks wait for rank 0 to print why the run has failed

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


for module in (
    model,
    pretrain,
    data,
    distill,
    finetune,
    left_to_right,
    embeddings,
    index,
    serve,
    study,
):
    module.register(app)


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
