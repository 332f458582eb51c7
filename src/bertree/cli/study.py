"""The verbs of studies: `study list`, `study show`, `study run`, `study report`, `study compare`."""

from textwrap import fill
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated

import typer

from bertree.cli.command import TRAIN, print_json, python_verb, verb
from bertree.cli.options import JsonOption, Option
from bertree.console import note, say
from bertree.errors import UserError, counted

if TYPE_CHECKING:
    from bertree.study.compare import StudyComparison
    from bertree.study.definition import Study
    from bertree.study.results import StudyResults

RUN_OPTIONS = {
    "study": Option(metavar="STUDY", help="Name of a study (bertree study list), or a .toml file of your own."),
    "size": Option(metavar="tiny|small|paper", help="How large the models and runs of the cells are."),
    "store": Option(metavar="DIR", help="Token store that models are pretrained on (bertree prepare)."),
    "tasks": Option(
        metavar="DIR",
        help="Folder with the data of the tasks (MNLI, SST-2, squad ...). None: only pretraining figures.",
    ),
    "model": Option(
        metavar="MODEL",
        help="Model to begin with, in place of pretraining; for studies whose cells all pretrain the same model.",
    ),
    "out": Option(help="Folder of the study."),
    "seeds": Option(help="Seeds of every cell. 0: those of the size."),
    "jobs": Option(help="Steps that are computed at a time."),
    "device": Option(metavar="auto|cpu|cuda", help="Device of all steps."),
    "only": Option(metavar="CELL", help="Compute this cell alone; may be repeated."),
    "skip": Option(metavar="STEP", help="Leave out this step, for example a task without data; may be repeated."),
    "steps": Option(help="Only try the study out: so many steps of pretraining, few examples of a task. 0: all."),
    "dry_run": Option(help="Check everything and print what would be computed."),
    "template": Option(metavar="FILE", help="Write a study of your own (or a copy of STUDY) to this file, and stop."),
}


def register(app: typer.Typer) -> None:
    """Add the verbs to the application."""
    verbs = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
    verb(verbs, name="list")(list_studies)
    verb(verbs)(show)
    python_verb(verbs, "study.execute.run_study", ("study",), name="run", own=RUN_OPTIONS)(run)
    folder = {"folder": Option(metavar="DIR", help="Folder of a study.")}
    python_verb(verbs, "study.report.study_report", ("folder",), name="report", own=folder)(report)
    both = {name: Option(metavar="DIR", help="Folder of a study.") for name in ("first", "second")}
    python_verb(verbs, "study.compare.compare_studies", ("first", "second"), name="compare", own=both)(compare)
    app.add_typer(
        verbs, name="study", help="Compute a paper's table again at a size you can afford.", rich_help_panel=TRAIN
    )


def list_studies(as_json: JsonOption = False) -> None:
    """List the studies: the paper and table, what is varied, and what a study costs at each size.

    [dim]bertree study list[/dim]
    """
    from bertree.study.load import studies

    bundled = studies()
    if as_json:
        print_json(
            {
                name: {
                    "paper": study.paper,
                    "varied": study.varied,
                    "cost": {size: _cost(study, size)[1] for size in study.sizes},
                }
                for name, study in bundled.items()
            }
        )
        return
    from bertree.cli.render import make_console
    from bertree.study.definition import SIZES

    line, width = f"{{:{max(map(len, bundled))}}}  {{:5}}  {{:12}}  {{:12}}  {{}}".format, make_console().width
    print(line("study", "cells", *SIZES))
    for name, study in bundled.items():
        costs = (_cost(study, size)[0] if size in study.sizes else "" for size in SIZES)
        print(line(name, len(study.running()), *costs))
        print(fill(f"{study.varied}: {study.paper}", width, initial_indent="  ", subsequent_indent="  "))
    print("Cost: tiny on two CPU cores, small and paper on one NVIDIA H200. ~ is an estimate, others are from a run.")


def _cost(study: "Study", name: str) -> tuple[str, str]:
    """Return what a study costs at a size: the time, and what for."""
    from bertree.report.formats import duration

    size, cells = study.size(name), len(study.running())
    time = ("" if size.measured else "~") + duration(60 * size.minutes * cells * size.seeds)
    return time, f"{name}: {cells} cells x {counted(size.seeds, 'seed')}, {time} on {size.machine}"


def show(
    study: Annotated[str, typer.Argument(metavar="STUDY", help="Name of a study, or a .toml file.")],
    as_json: JsonOption = False,
) -> None:
    """Show a study: its cells with their settings, the published figures, and the pattern that is checked.

    [dim]bertree study show bert-size[/dim]
    """
    from bertree.config.settings import as_tree
    from bertree.study.load import load_study
    from bertree.study.report import published_table

    loaded = load_study(study)
    if as_json:
        print_json(as_tree(loaded))
        return
    print(f"{published_table(loaded)}\n\nCells:\n")
    for cell in loaded.running():
        parts = [f"{step}: {' '.join(values)}" for step, values in cell.set.items()]
        parts += [
            f"{step}: {', '.join(f'{name} {value}' for name, value in fields.items())}"
            for step, fields in cell.change.items()
        ]
        print(f"- {cell.name}: {'; '.join(parts) or 'as the study'}")
    if all(len(loaded.pretraining(loaded.running(), size)) == 1 for size in loaded.sizes.values()):
        print("\nAll cells pretrain the same model; --model MODEL of `study run` takes its place.")
    print("\nCost (~: an estimate):\n")
    for size in loaded.sizes:
        print(f"- {_cost(loaded, size)[1]}")


def run(results: "StudyResults", options: SimpleNamespace) -> None:
    """Compute a paper's table again: every cell with several seeds, resumable, with the published figures beside ours.

    OUT receives rows.jsonl, table.md, report.html and the folder of every step. What cells have in common, for example
    a pretrained model, is computed once. Run the command again to continue after an interruption, or with more --seeds
    or another --only to add to the table.

    [dim]bertree study run bert-size --store my-store --tasks glue --out bert-size
    bertree study run my-study.toml --store my-store --out mine --seeds 3 --jobs 2
    bertree study run bilstm-glue --model default --tasks glue --out from-default
    bertree study run albert-sop --store my-store --out sop --dry-run
    bertree study run --template my-study.toml[/dim]
    """
    if options.template is not None:
        say(f"{options.template}: written; change it, then `bertree study run {options.template} ...`")
        return
    report(results, options)
    if results.signal is not None:
        raise typer.Exit(128 + results.signal)
    if failed := sum(row["state"] not in ("done", "diverged") for row in results.rows):
        note(f"{counted(failed, 'row')} without figures, because a step failed; the same command tries again")
        raise typer.Exit(1)


def report(results: "StudyResults", options: SimpleNamespace) -> None:
    """Print the table of a study's folder as far as it goes, and write table.md and report.html again.

    [dim]bertree study report bert-size[/dim]
    """
    from bertree.study.report import markdown_table

    if options.as_json:
        print_json(
            {"study": results.study.name, "size": results.size, "verdict": results.verdict, "rows": list(results.rows)}
        )
    elif results.rows:
        print(markdown_table(results))
    elif not getattr(options, "dry_run", False) and results.signal is None:
        raise UserError("no step of the study is finished yet")


def compare(comparison: "StudyComparison", options: SimpleNamespace) -> None:
    """Compare two folders of a study: figures side by side, their differences and standard errors.

    Seeds are in brackets. A difference is resolved if it is larger than twice its standard error.

    [dim]bertree study compare bert-size bert-size-wiki[/dim]
    """
    if options.as_json:
        print_json(
            [
                {
                    "cell": difference.cell,
                    "column": difference.column.name,
                    "first": difference.first.value,
                    "second": difference.second.value,
                    "difference": difference.difference,
                    "error": difference.error,
                    "resolved": difference.resolved,
                }
                for difference in comparison.differences
            ]
        )
        return
    for place, results in (("first", comparison.first), ("second", comparison.second)):
        print(f"{place}: {results.study.name}, {results.size}")
    print(f"\n{comparison.table}")
