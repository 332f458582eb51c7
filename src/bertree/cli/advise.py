"""The verb `advise`: help text (its docstring) and output."""

from types import SimpleNamespace
from typing import TYPE_CHECKING

import typer

from bertree.cli.command import LOOK, print_json, python_verb
from bertree.cli.options import Option

if TYPE_CHECKING:
    from bertree.advice.candidates import AdviceCandidate
    from bertree.advice.result import Advice

SHOWN = 8  # others


def register(app: typer.Typer) -> None:
    """Add the verb to the application."""
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
        _print(1, advice.nearest, advice)
        misses = ", ".join(f"{name} {times:.2g} times the limit" for name, times in advice.nearest.misses.items())
        print(f"   misses: {misses}")
    for number, candidate in enumerate(advice.choices, 1):
        print()
        _print(number, candidate, advice)
    if advice.to_fetch:
        print("\nBetter, if you bring the weights (a folder of that name):")
    for candidate in advice.to_fetch:
        _print(0, candidate, advice)
    if advice.rules:
        print("\nRules:")
    for rule in advice.rules:
        against = f" {rule.figures}" if rule.ours == "contradicted" else ""
        print(f"  {rule.text} [{rule.source}; our own studies: {rule.ours}]{against}")
    if advice.others:
        print("\nNot taken:")
    for candidate, reason in advice.others[:SHOWN]:
        costs = ", ".join(describe_costs(candidate)[1:3])
        print(f"  {candidate.name}: {reason} ({costs})")
    if (more := len(advice.others) - SHOWN) > 0:
        print(f"  and {more} more: --json or --out page.html shows them")


def _print(number: int, candidate: "AdviceCandidate", advice: "Advice") -> None:
    from bertree.advice.result import describe_costs, describe_expected

    print(f"{number}. {candidate.name}" if number else f"-  {candidate.name}")
    print(f"   {', '.join(describe_costs(candidate))}")
    print(f"   expected: {describe_expected(candidate, advice.metric)}")
    for command in advice.commands(candidate):
        print(f"   $ {command}")
