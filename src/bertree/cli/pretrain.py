"""The verbs `pretrain` and `recipe`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from bertree.cli.command import end_run, print_json, verb
from bertree.cli.options import (
    JsonOption,
    ResumeOption,
    SettingsArgument,
    StoreOption,
    TrainDeviceOption,
    TrainPrecisionOption,
    training_settings,
)

RecipeArgument = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A built-in recipe, or the path of a .toml file.", show_default=False)
]
recipe_verbs = typer.Typer(no_args_is_help=True, help="List the recipes, or show every value of one.")


def register(app: typer.Typer) -> None:
    """Add the verbs to the application."""
    verb(app, on_ranks=True)(pretrain)
    app.add_typer(recipe_verbs, name="recipe")


def pretrain(
    recipe: RecipeArgument,
    settings: SettingsArgument = None,
    store: StoreOption = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of the run.")] = Path("run"),
    resume: ResumeOption = False,
    device: TrainDeviceOption = None,
    precision: TrainPrecisionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Pretrain a model from a recipe: masked or next tokens, and next sentence or sentence order where it says so.

    OUT receives model/, checkpoints/, metrics.jsonl and report.html. Ctrl-C saves and stops; --resume goes on, and
    the result is the same to the byte as without the stop.

    [dim]bertree pretrain bert-base-tiny --store my-store --out my-run
    bertree pretrain roberta-base --store my-store --out my-run lr=4e-4 steps=20000 warmup=1000
    bertree pretrain my-recipe.toml --out my-run --resume
    bertree pretrain bert-base-tiny --store new-text --out adapted model.start=my-run/model
    bertree pretrain transformer-xl-tiny --store my-store --out my-xl[/dim]
    """
    from bertree.pretraining.pretrain import pretrain as run_pretraining
    from bertree.run_folder import CHECKPOINTS, METRICS, MODEL, REPORT

    overrides = training_settings(settings, device, precision)
    run = run_pretraining(recipe, store=store, out=out, resume=resume, overrides=overrides)
    end_run(run, as_json, lambda run: print(f"{run.folder}: {MODEL}/, {REPORT}, {METRICS}, {CHECKPOINTS}/"))


@verb(recipe_verbs, "list")
def list_recipes(as_json: JsonOption = False) -> None:
    """List the built-in recipes.

    [dim]bertree recipe list[/dim]
    """
    from rich.console import Console
    from rich.table import Table

    from bertree.pretraining import recipe as recipes

    notes = {name: recipes.load(name).note for name in recipes.bundled_recipes()}
    if as_json:
        print_json(notes)
        return
    table = Table("recipe", "", box=None, pad_edge=False)
    for name, note in notes.items():
        table.add_row(name, note)
    Console().print(table)


@verb(recipe_verbs, "show")
def show_recipe(recipe: RecipeArgument, settings: SettingsArgument = None) -> None:
    """Print a recipe with every value it will be run with, as TOML.

    [dim]bertree recipe show bert-base lr=2e-4[/dim]
    """
    from bertree.config.settings import as_toml
    from bertree.pretraining import recipe as recipes

    found = recipes.load(recipe, settings or [])
    sys.stdout.write(as_toml(found))
