"""`bertree info`: draw the family tree, or one point of the design space with its cost."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from bertree.cli.render import make_table
from bertree.comparison.info import count_parameters
from bertree.config import names as model_names
from bertree.errors import UserError
from bertree.interop.folder import read_architecture, read_max_length
from bertree.model import cost
from bertree.model.architecture import MEANING, Architecture, later_axes
from bertree.model.presets import DEFAULT, PRESETS, Preset

EMBEDDING_PARTS = {
    "tokens_v_x_e": "tokens, V x E",
    "projection_e_x_h": "projection, E x H",
    "positions": "positions",
    "segments_norm_biases": "segments, norm, biases",
    "character_cnn": "character CNN",
}


def print_tree(console: Console) -> None:
    """Print the family tree: every preset with its number of parameters."""
    root = PRESETS["bert-base"]
    console.print(_grow(Tree(_line(root), guide_style="dim"), root.name))
    console.print(
        "\n[dim]Parameters without the MLM head, each shared tensor once. "
        "One point in full: [/dim]bertree info albert-base[dim]; "
        "any axis turned: [/dim]bertree info albert-base layers=6"
    )
    if model_names.FOLDER.is_dir():
        console.print(f"[dim]The bundled, trained model: [/dim]bertree info {DEFAULT}")


def _grow(tree: Tree, name: str, depth: int = 1) -> Tree:
    study = []
    for child in (p for p in PRESETS.values() if p.parent == name):
        if child.study:
            study.append(child)
        else:
            _grow(tree.add(_line(child, depth)), child.name, depth + 1)
    if study:
        title = "ALBERT studies, E against sharing: albert-base-e64-none ..."
        branch = tree.add(Text(title, style="italic"))
        branch.add(_study_table(study))
    return tree


def _line(point: Preset, depth: int = 0) -> Text:
    a = point.architecture
    millions = cost.parameters(a).total / 1e6
    line = Text.assemble(
        (point.name.ljust(36 - 4 * depth), "bold"),  # each level of the tree indents by four
        (f"{millions:7.1f}M  ", "green"),
        (a.short, "cyan"),
        (f"  {point.note}", "dim"),
    )
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def _study_table(points: list[Preset]) -> Table:
    widths = sorted({p.architecture.embedding_width for p in points})
    table = make_table("sharing", *(f"E {width}" for width in widths))
    by_sharing: dict[str, dict[int, Preset]] = {}
    for point in points:
        axes = point.architecture.axes()
        by_sharing.setdefault(axes["sharing"], {})[axes["embedding_width"]] = point
    for sharing, row in by_sharing.items():
        table.add_row(sharing, *(f"{cost.parameters(row[w].architecture).total / 1e6:.1f}M" for w in widths))
    return table


def print_point(console: Console, point: Preset, batch: int, length: int, card: float) -> None:
    """Print one point: its axes, its differences from its parent, and its costs."""
    a = point.architecture
    if length > a.longest_input:
        raise UserError(f"--length {length}: the architecture has only {a.longest_input} positions")
    console.print(Text.assemble((point.name, "bold"), f"  {point.note}"))
    if point.folder:
        _print_folder(console, Path(point.folder))
    console.print(Group(_axes(point), Text(), _parameters(point), Text(), _costs(point, batch, length, card)))
    if long := _long_costs(a, card):
        console.print(Group(Text(), long))
    if attention_dropout := a.axes()["attention_dropout"]:
        console.print(f"\n[dim]attention_dropout {attention_dropout}: {_dropout_note(a)}[/dim]")


def _dropout_note(a: Architecture) -> str:
    kinds = set(a.axes()["attention"].split(","))
    if kinds <= {"chunked", "lsh"}:
        return "training computes attention in plain PyTorch; set attention_dropout=0 for the kernels."
    return (
        "training takes the padded attention kernel, the only one with dropout on probabilities; set "
        "attention_dropout=0 for the padding-free one."
    )


def _print_folder(console: Console, folder: Path) -> None:
    """Print a model's folder, size, maximum length and card. Paths are not wrapped, so that they can be copied."""
    size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    console.print(Text(f"in {folder}, {size / 1e6:,.1f} MB"), soft_wrap=True)
    longest, positions = read_max_length(folder), read_architecture(folder).max_positions
    beyond = f" of {positions:,} positions; those beyond may be untrained" if longest < positions else ""
    console.print(Text(f"maximum length: {longest:,} tokens{beyond}"), soft_wrap=True)
    if (folder / model_names.CARD).is_file():
        console.print(Text(f"its card: {folder / model_names.CARD}"), soft_wrap=True)
    console.print()


def _axes(point: Preset) -> Table:
    parent = PRESETS[point.parent].architecture if point.parent else None
    changed = point.architecture.differences(parent) if parent else {}
    table = make_table("axis", "value", f"in {point.parent}" if parent else "", "what it is")
    own, fixed = point.architecture.written_axes(), point.architecture.fixed_axes()
    for name, value in own.items():
        if name in fixed:  # in the file, but without effect on this kind of model
            continue
        shown, meaning = _value(value), f"[dim]{MEANING[name]}[/]"
        if name in changed:
            table.add_row(name, f"[bold yellow]{shown}[/]", _value(changed[name][0]), meaning)
        else:
            table.add_row(name, shown, "", meaning)
    later = later_axes(point.architecture)
    uses = any(name in own for name in later) or "local" in own["attention"]
    for name, value in later.items():
        if name not in own:  # a number that only another choice would use is not shown
            shown = _value(value) if uses or isinstance(value, str | bool) else "-"
            table.add_row(name, shown, "", f"[dim]{MEANING[name]}[/]")
    return table


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _parameters(point: Preset) -> Table:
    counts = count_parameters(point)
    weights = counts.total + counts.mlm_head
    table = make_table("parameters", "", numbers=1)
    for name, value in counts.as_dict().items():
        table.add_row(
            name.replace("_", " ").replace("mlm", "MLM"),
            f"{value:,}",
            style="bold" if name == "total" else "",
        )
        if name == "embeddings":
            for part, number in cost.embedding_parts(point.architecture).items():
                table.add_row(f"  {EMBEDDING_PARTS[part]}", f"{number:,}", style="dim")
    for texts, count in cost.costs(point.architecture).classifiers().items():
        table.add_row(f"LSTM and classifier of {texts}", f"{count:,}")
    label = "weights with MLM head" if counts.mlm_head else "weights"
    table.add_row(label, f"{4 * weights / 1e6:,.1f} MB in fp32, {2 * weights / 1e6:,.1f} MB in bf16")
    if point.published:
        table.add_row("published", point.published)
    return table


def _costs(point: Preset, batch: int, length: int, card: float) -> Group:
    a = point.architecture
    table = make_table("sequence length", *map(str, cost.LENGTHS), numbers=1)

    def shown(length: int, cell: Any) -> str:
        return str(cell) if length <= a.longest_input else "-"

    def giga(flops: float) -> str:
        return f"{flops / 1e9:.{2 if flops >= 1e7 else 4}f}"

    table.add_row("forward GFLOP a token", *(shown(n, giga(cost.forward_flops(a, n))) for n in cost.LENGTHS))
    table.add_row("training GFLOP a token", *(shown(n, giga(cost.training_flops(a, n))) for n in cost.LENGTHS))
    table.add_row(f"largest batch, {card:g} GB card", *(shown(n, cost.largest_batch(a, n, card)) for n in cost.LENGTHS))
    if card == 12 and point.name in cost.PUBLISHED_BATCHES:
        published = map(str, cost.PUBLISHED_BATCHES[point.name])
        table.add_row("[dim]published by BERT's authors[/]", *(f"[dim]{cell}[/]" for cell in published))
    table.add_row(
        f"largest inference batch, {card:g} GB card",
        *(shown(n, f"{cost.largest_inference_batch(a, n, card):,}") for n in cost.LENGTHS),
    )
    memory = cost.training_bytes(a, batch, length) / cost.GIB
    inference = cost.inference_bytes(a, batch, length) / cost.GIB
    return Group(
        table,
        Text(f"training memory for a batch of {batch} x {length}: {memory:.2f} GiB", style="bold"),
        Text(f"inference memory for a batch of {batch} x {length}: {inference:.2f} GiB in fp32", style="bold"),
        Text(cost.costs(a).assumptions, style="dim"),
    )


def _long_costs(a: Architecture, card: float) -> Group | None:
    """Return a table of memory, batches and operations; None if the architecture has no option for long sequences."""
    variants, lengths = cost.option_variants(a), cost.long_lengths(a)
    if not variants or not lengths:
        return None
    table = make_table("training on long sequences", *(f"{length:,}" for length in lengths), numbers=1)

    def add(title: str, names: list[str], cell: Callable[[Architecture, int], str]) -> None:
        table.add_row(f"[bold]{title}[/]")
        for name in names:
            table.add_row(f"  {name}", *(cell(variants[name], length) for length in lengths))

    add("GiB for one sequence", list(variants), lambda v, n: f"{cost.training_bytes(v, 1, n) / cost.GIB:.1f}")
    add(f"largest batch, {card:g} GB card", list(variants), lambda v, n: f"{cost.largest_batch(v, n, card):,}")
    add("forward GFLOP a token", list(variants)[:2], lambda v, n: f"{cost.forward_flops(v, n) / 1e9:.2f}")
    meaning = (
        "one option alone, none or all; without chunks, attention is computed by a flash kernel, see docs/memory.md"
    )
    return Group(table, Text(meaning, style="dim"))
