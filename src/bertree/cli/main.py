"""The command line: verbs, one function each. Heavy imports happen inside the verb."""

import inspect
import sys
import warnings
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, NoReturn

import typer

import bertree
from bertree.cli import data, distill, embeddings, finetune, pretrain, search, similar
from bertree.console import showing
from bertree.errors import BertreeWarning, UserError

app = typer.Typer(
    name="bertree",
    help="The BERT family as one design space: from a folder of text to an encoder of your own.",
    epilog="Start with: bertree info",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

ModelArgument = Annotated[
    str, typer.Argument(help="a model folder (bertree's or Hugging Face's), default, or the name of a preset")
]
JsonOption = Annotated[bool, typer.Option("--json", help="print JSON for machines")]


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="print the version and stop")] = False,
) -> None:
    if version:
        print(f"bertree {bertree.__version__}")
        raise typer.Exit


@app.command()
def info(
    name: Annotated[str | None, typer.Argument(help="a preset, a model folder, or default; without: the tree")] = None,
    axes: Annotated[list[str] | None, typer.Argument(help="axes to turn: layers=6 sharing=none ...")] = None,
    batch: Annotated[int, typer.Option(min=1, help="sequences a step, for the training memory")] = 32,
    length: Annotated[int, typer.Option(min=1, help="tokens a sequence, for the training memory")] = 128,
    card: Annotated[float, typer.Option(min=0.1, max=1e6, help="memory of the card in GB, for the largest batch")] = 12,
    as_json: JsonOption = False,
) -> None:
    """Draw the family tree, or show one point: axes, parameters, memory, operations.

    [dim]bertree info
    bertree info albert-base
    bertree info bert-base layers=6 segments=0 --card 24
    bertree info path/to/model --json[/dim]
    """
    from rich.console import Console

    from bertree.cli import info as view

    if name is None:
        view.print_json(view.tree_json()) if as_json else view.print_tree(Console())
        return
    point = view.find(name, axes or [])
    if as_json:
        view.print_json(view.as_json(point))
    else:
        view.print_point(Console(), point, batch, length, card)


@app.command()
def fill(
    model: ModelArgument,
    text: Annotated[str, typer.Argument(help="a text with a mask in it: [MASK] or <mask>")],
    k: Annotated[int, typer.Option("-k", "--top", min=1, help="candidates to show")] = 5,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 ...")] = "cpu",
    tokenizer: Annotated[Path | None, typer.Option(help="folder with the tokenizer, if not the model's own")] = None,
    as_json: JsonOption = False,
) -> None:
    """Fill the masks of a text: the likeliest tokens and their probabilities.

    [dim]bertree fill default "The capital of France is \\[MASK]."
    bertree fill my-model "He went to \\[MASK]." -k 10[/dim]
    """
    from rich.console import Console

    from bertree import load
    from bertree.cli import convert

    convert.fill(Console(), load(model, device=device, tokenizer=tokenizer), text, k, as_json)


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="the model folder to read, of either kind, or default")],
    target: Annotated[Path, typer.Argument(metavar="DST", help="the folder to write")],
    to: Annotated[str, typer.Option("--to", metavar="bertree|huggingface|onnx", help="the kind of folder to write")],
    dtype: Annotated[
        str, typer.Option(help="precision of the written weights: float32, bfloat16, float16; int8 (not huggingface)")
    ] = "float32",
    force: Annotated[bool, typer.Option("--force", help="replace DST if it holds a model already")] = False,
) -> None:
    """Convert a model folder to bertree's or to Hugging Face's form, or to ONNX, with its tokenizer.

    A bertree folder is a Hugging Face folder plus bertree.toml wherever Hugging Face knows the architecture. An ONNX
    file is encoder, pooling and normalising, for other run times.

    [dim]bertree convert bert-base-uncased my-bert --to bertree
    bertree convert my-bert for-transformers --to huggingface
    bertree convert my-bert a-quarter-of-it --to bertree --dtype int8
    bertree convert my-sentence-model for-onnx --to onnx[/dim]
    """
    from bertree.cli.convert import convert_folder

    convert_folder(source, target, to, dtype, force)


app.add_typer(data.tokenizer, name="tokenizer")
app.command()(data.prepare)
app.add_typer(data.store, name="store")
app.command()(pretrain.pretrain)
app.command()(pretrain.config)
app.command()(distill.distill)
for verb in (finetune.finetune, finetune.evaluate, finetune.predict, finetune.features, finetune.glue):
    app.command()(verb)
app.command()(distill.compare)
app.add_typer(search.index, name="index")
app.add_typer(embeddings.sentence, name="sentence")
for of_vectors in (similar.embed, similar.similar, similar.pairs, similar.cluster):
    app.command()(of_vectors)


def _flow(verbs: typer.Typer) -> None:
    """Let the paragraphs of help run as wide as the terminal is; examples keep their lines."""
    for verb in verbs.registered_commands:
        parts = (inspect.getdoc(verb.callback) or "").split("\n\n")
        verb.help = "\n\n".join(part if part.startswith("[dim]") else " ".join(part.split()) for part in parts)
    for group in verbs.registered_groups:
        assert group.typer_instance is not None
        _flow(group.typer_instance)


_flow(app)


def main() -> None:
    """Run a verb; what the user did wrong becomes one line and exit code 2."""
    warnings.showwarning = _say_warning  # type: ignore[assignment]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character shows another
    warnings.simplefilter("always", BertreeWarning)
    try:
        with showing():
            code = app(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except UserError as error:
        _fail(str(error))
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            sys.stderr.close()
            sys.exit(141)
        _fail(f"{error.filename or 'system'}: {error.strerror or error}")
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        # A mistake in the options: typer's own classes, which it does not export.
        context = getattr(error, "ctx", None)
        _fail(f"{error.format_message()} (see {context.command_path if context else 'bertree'} --help)")
    except KeyboardInterrupt:
        sys.exit(130)


def _fail(line: str) -> NoReturn:
    print(f"bertree: {' '.join(line.split())}", file=sys.stderr)
    sys.exit(2)


def _say_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    if issubclass(category, BertreeWarning):
        print(f"bertree: note: {message}", file=sys.stderr)
