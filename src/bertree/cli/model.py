"""The verbs about models: `info`, `layers`, `fill`, `convert`, `verify`, `advise`."""

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated

import typer

from bertree.cli.command import CHECK, LOOK, USE, import_quickly, print_json, python_verb, verb
from bertree.cli.options import DeviceOption, JsonOption, ModelArgument, Option, TokenizerOption

if TYPE_CHECKING:
    from bertree.advice.candidates import AdviceCandidate
    from bertree.advice.result import Advice
    from bertree.model.architecture import Architecture
    from bertree.report.layers import LayerAnalysis
    from bertree.verification.verify import Verification


def register(app: typer.Typer) -> None:
    """Add the verbs to the application."""
    verb(app, panel=LOOK)(info)
    own = {
        "other": Option(metavar="[OTHER]", help="A second model, on the same texts."),
        "texts": Option(metavar="FILE", help="Texts to read: one per line (.txt), .jsonl, .csv, .tsv, .parquet."),
        "out": Option(help="The .html file to write."),
        "max_length": Option(min=0, help="Tokens of a text; 0: the maximum of the models."),
    }
    python_verb(app, "inference.layer_report.layers", ("model", "other"), panel=LOOK, own=own)(layers)
    verb(app, panel=USE)(fill)
    folders = {
        "source": Option(metavar="SRC", help="Model folder to read, of either kind, a run, or: default."),
        "target": Option(metavar="DST", help="Folder to write."),
        "precision": Option(help="Of the written weights: float32, bfloat16, float16; int8 (not for huggingface)."),
    }
    python_verb(app, "inference.load.convert", ("source", "target"), panel=USE, own=folders)(convert)
    path = {"path": Option(metavar="PATH", help="A model folder, a token store, an index, a run, or: default.")}
    python_verb(app, "verification.verify.verify", ("path",), panel=CHECK, own=path)(verify)
    _register_advise(app)


def info(
    name: Annotated[
        str | None, typer.Argument(help="A preset, a model folder, or: default; without it, the family tree.")
    ] = None,
    axes: Annotated[list[str] | None, typer.Argument(help="Axes to change: layers=6 sharing=none ...")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Sequences per step, for the training memory.")] = 32,
    length: Annotated[
        int | None, typer.Option(min=1, help="Tokens per sequence, for the training memory; 128 or fewer if not given.")
    ] = None,
    card: Annotated[float, typer.Option(min=0.1, max=1e6, help="GPU memory in GB, for the largest batch.")] = 12,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="Show the kernels of attention and which is used when, on a device.")
    ] = False,
    device: Annotated[
        str, typer.Option("--device", help="With --kernels: cpu or cuda; auto: cuda if there is one.")
    ] = "auto",
    as_json: JsonOption = False,
) -> None:
    """Draw the family tree, or describe a model or preset: axes, parameters, memory, operations.

    [dim]bertree info
    bertree info albert-base
    bertree info bert-base layers=6 segments=0 --card 24
    bertree info path/to/model --json
    bertree info --kernels --device cuda[/dim]
    """
    from bertree.cli.render import make_console
    from bertree.errors import UserError

    if kernels:
        from bertree.cli.render.devices import as_json as kernels_json
        from bertree.cli.render.devices import print_kernels

        if name is not None:
            raise UserError(f"--kernels: shows the kernels of a device, not of a model ({name})")
        print_json(kernels_json(device)) if as_json else print_kernels(make_console(), device)
        return
    import_quickly("comparison.info")
    from bertree.cli.render.family import print_point, print_tree
    from bertree.comparison.info import describe, find_point
    from bertree.model.presets import PRESETS

    if name is None:
        print_json([describe(point) for point in PRESETS.values()]) if as_json else print_tree(make_console())
        return
    point = find_point(name, axes or [])
    if as_json:
        print_json(describe(point))
    else:
        print_point(make_console(), point, batch, length or min(128, point.architecture.max_positions), card)


def layers(analysis: "LayerAnalysis", options: SimpleNamespace) -> None:
    """Measure what each layer of a model, or of two, does to texts.

    For each layer: L2 distance and cosine of its input and output, length and anisotropy of its states, CKA with the
    layer before and with the last one, attention to special tokens and to the token itself, entropy of attention, and
    how often it would predict what the last layer predicts. The page shows every head, CKA of all layers, and the
    first three texts to explore. Memory does not grow with the texts.

    [dim]bertree layers default --texts mail.txt
    bertree layers my-bert my-small-bert --texts mail.txt --out layers.html
    bertree layers my-model --texts mail.csv --text body --json[/dim]
    """
    from bertree.cli.render import make_console, make_table
    from bertree.report.layers import layer_rows

    if options.as_json:
        print_json(analysis.as_json())
        return
    for model in analysis.models:
        head, rows = layer_rows(model)
        title = f"{model.name}: {model.tokens:,} tokens of {model.texts:,} texts"
        make_console().print(make_table(*head, rows=rows, numbers=0, title=title, title_justify="left"))
    if analysis.cka is not None:
        first, second = (model.name for model in analysis.models)
        print(f"CKA of {first} with {second} over {analysis.over}: {analysis.cka[-1, -1]:.3f} of the last layers")
    if options.out is not None:
        print(options.out)


def fill(
    model: ModelArgument,
    text: Annotated[str, typer.Argument(help="A text with a mask in it: \\[MASK] or <mask>.", show_default=False)],
    k: Annotated[int, typer.Option("-k", "--top", min=1, help="Candidates to show.")] = 5,
    device: DeviceOption = "auto",
    tokenizer: TokenizerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fill the masks of a text: the most likely tokens and their probabilities.

    [dim]bertree fill default "The capital of France is \\[MASK]."
    bertree fill my-model "He went to \\[MASK]." -k 10[/dim]
    """
    from bertree.cli.render.texts import print_candidates
    from bertree.console import note
    from bertree.inference.load import choose_device, load
    from bertree.inference.mask_filling import Candidate

    loaded = load(model, device=choose_device(device), tokenizer=tokenizer)
    filled = loaded.fill_mask(text, k)
    if not loaded.trained:
        note("a preset has random weights: its candidates mean nothing")
    masks: list[list[Candidate]] = [filled] if isinstance(filled[0], Candidate) else filled
    if as_json:
        print_json([[candidate._asdict() for candidate in mask] for mask in masks])
    else:
        print_candidates(masks)


def convert(architecture: "Architecture", options: SimpleNamespace) -> None:
    """Convert a model folder to bertree's or to Hugging Face's form, or to ONNX, with its tokenizer.

    A bertree folder is a Hugging Face folder plus bertree.toml wherever Hugging Face knows the architecture. An ONNX
    file is for other run times: it holds the encoder and the head of its task, or the pooling of sentence vectors.

    [dim]bertree convert bert-base-uncased my-bert --to bertree
    bertree convert my-bert for-transformers --to hf
    bertree convert my-bert a-quarter-of-it --to bertree --precision int8
    bertree convert my-classifier for-onnx --to onnx
    bertree convert my-sentence-model small-onnx --to onnx --precision int8[/dim]
    """
    from bertree.interop import onnx
    from bertree.report.formats import describe_architecture

    kind = "huggingface" if options.to == "hf" else options.to
    if options.as_json:
        details = onnx.read_details(Path(options.target)) if options.to == "onnx" else {}
        print_json({"folder": options.target, "kind": kind, "precision": options.precision} | details)
    else:
        print(f"{options.target}: {kind} folder, {describe_architecture(architecture)}")
        if options.to == "onnx":
            print(f"{onnx.FILE}: {onnx.describe(Path(options.target))}")


def verify(verification: "Verification", options: SimpleNamespace) -> None:
    """Read every byte and compare it with its checksums; the first damaged file is named, with exit code 2.

    For a model, names, shapes and values of all weights are checked too, and whether the tokenizer fits. Files of other
    programs have no checksums; the output lists what could not be checked.

    [dim]bertree verify my-model
    bertree verify my-run --json[/dim]
    """
    checked, unchecked = list(verification.checked), list(verification.unchecked)
    if options.as_json:
        kind = {"folder": str(verification.folder), "kind": verification.kind}
        print_json(kind | {"checked": checked, "unchecked": unchecked})
        return
    print(f"{verification.folder}: {verification.kind}, undamaged")
    for line in checked:
        print(f"  checked: {line}")
    for line in unchecked:
        print(f"  not checked: {line}")


OTHERS = 8  # that are shown


def _register_advise(app: typer.Typer) -> None:
    """Add the verb `advise` to the application."""
    own = {
        "task": Option(
            help="classification, pair-classification, similarity, search, tagging, questions, choice; or a task of "
            "`bertree finetune`."
        ),
        "examples": Option(help="Labeled examples: 5000, 5k.", parser=str, default="those of --data"),
        "latency": Option(help="Longest time for one text, with its unit: 20ms, 1.5s."),
        "memory": Option(help="Most memory of weights and one text, with its unit: 500MB, 2GiB."),
        "length": Option(min=1, help="Tokens of a text, or of a pair of texts."),
        "pairs": Option(help="Pairs of texts to compare: 1000000, 1m.", parser=str),
        "card": Option(help="GiB of the GPU that trains."),
        "data": Option(help="Labeled examples, a file or folder: the models that are here are tried out on them."),
        "models": Option(help="A model folder to consider besides the bundled model; may be repeated."),
        "out": Option(help="The page (.html) to write."),
    }
    python_verb(app, "advice.advise.advise", (), panel=LOOK, own=own)(advise)


def advise(advice: "Advice", options: SimpleNamespace) -> None:
    """Say which model to take for a task and how to get there: three choices that meet the limits, and why not others.

    Latency is measured on this machine. Expected scores come from our own measurements, from papers, or with --data
    from a short trial: features of each model on a part of the examples, with more and more of them. If nothing
    meets the limits, the candidate that exceeds them least is shown.

    [dim]bertree advise --task classification --examples 5000 --latency 20ms --memory 500MB
    bertree advise --task similarity --pairs 1m --length 40
    bertree advise --task classification --data mail.csv --text body --label folder --out advice.html[/dim]
    """
    if options.as_json:
        print_json(advice.as_json())
        return
    from bertree.advice.result import describe_costs

    print(f"{advice.request.describe()}; {advice.device}")
    for row in advice.trial:
        print(f"  tried out: {row.model}, {row.way}, {row.examples:,} examples: {row.score:.1f}")
    if advice.nearest:
        print("\nNothing here meets the limits. Nearest:")
        _print_candidate(1, advice.nearest, advice)
        misses = ", ".join(f"{name} {times:.2g} times the limit" for name, times in advice.nearest.misses.items())
        print(f"   misses: {misses}")
    for number, candidate in enumerate(advice.choices, 1):
        print()
        _print_candidate(number, candidate, advice)
    if advice.to_fetch:
        print("\nBetter, if you bring the weights (a folder of that name):")
    for candidate in advice.to_fetch:
        _print_candidate(0, candidate, advice)
    if advice.rules:
        print("\nRules:")
    for rule in advice.rules:
        against = f" {rule.figures}" if rule.ours == "contradicted" else ""
        print(f"  {rule.text} [{rule.source}; our own studies: {rule.ours}]{against}")
    if advice.others:
        print("\nNot taken:")
    for candidate, reason in advice.others[:OTHERS]:
        costs = ", ".join(describe_costs(candidate)[1:3])
        print(f"  {candidate.name}: {reason} ({costs})")
    if (more := len(advice.others) - OTHERS) > 0:
        print(f"  and {more} more: --json or --out page.html shows them")


def _print_candidate(number: int, candidate: "AdviceCandidate", advice: "Advice") -> None:
    from bertree.advice.result import describe_costs, describe_expected

    print(f"{number}. {candidate.name}" if number else f"-  {candidate.name}")
    print(f"   {', '.join(describe_costs(candidate))}")
    print(f"   expected: {describe_expected(candidate, advice.metric)}")
    for command in advice.commands(candidate):
        print(f"   $ {command}")
