"""The training verbs of the command line: `pretrain`, `config`."""

import json
from pathlib import Path
from typing import Annotated

import typer

RecipeArgument = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE", help="A recipe that comes with bertree, or the path of a .toml file.", show_default=False
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[key=value ...]", help="Changes: optim.lr=1e-4 phases.0.steps=500 model.layers=6 ..."),
]


def pretrain(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of the run.")] = Path("run"),
    store: Annotated[
        str | None, typer.Option("--store", help="Token store to learn from (short for data.store=...).")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest good checkpoint.")] = False,
) -> None:
    """Pretrain a model from a recipe: masked tokens, and next sentence or sentence order where the recipe asks it.

    OUT receives model/, checkpoints/, metrics.jsonl and report.html. Ctrl-C saves and stops; --resume goes on, and
    the result is the same to the byte as without the stop.

    [dim]bertree pretrain bert-base-tiny --store my-store --out my-run
    bertree pretrain roberta-base --store my-store --out my-run optim.lr=4e-4 phases.0.steps=20000 schedule.warmup=1000
    bertree pretrain my-recipe.toml --out my-run --resume
    bertree pretrain bert-base-tiny --store new-text --out adapted model.start=my-run/model[/dim]
    """
    from bertree.pretraining.run import pretrain as work

    given = [f"data.store={json.dumps(store, ensure_ascii=False)}"] if store is not None else []
    if code := work(recipe, [*given, *(overrides or [])], out, resume):
        raise typer.Exit(code)


def config(recipe: RecipeArgument = "", overrides: Overrides = None) -> None:
    """Print a recipe with every value it will be run with; without a name, the recipes that come with bertree.

    [dim]bertree config
    bertree config bert-base optim.lr=2e-4[/dim]
    """
    from bertree.pretraining.run import list_recipes, show_recipe

    show_recipe(recipe, overrides or []) if recipe else list_recipes()
