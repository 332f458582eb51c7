"""The verbs `adapt`, `pretrain`, `recipe list`, `recipe show` and `plan`."""

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import typer

from bertree.cli.command import LOOK, TRAIN, end_run, print_json, python_verb
from bertree.cli.options import Option

if TYPE_CHECKING:
    from bertree.inference.load import Run
    from bertree.scale.plan.plan import Plan

RECIPE = {"name": Option(metavar="RECIPE", help="A built-in recipe, or the path of a .toml file.")}
PLAN_OWN = {
    "model": Option(metavar="MODEL", help="A preset, a model folder, or a recipe."),
    "settings": Option(metavar="[key=value ...]", help="Axes to change: layers=96 width=8192 ...; or recipe settings."),
    "devices": Option(min=1, max=2**20, help="Devices that train together."),
    "card": Option(min=0.1, max=1e6, help="Memory of a device in GiB."),
    "tokens": Option(help="Tokens of the whole training (300e9), for its time."),
    "batch_tokens": Option(min=1, help="Tokens of a step on all devices; 524288 or the recipe's."),
    "length": Option(min=1, help="Tokens of a sequence; up to 1024, or the recipe's."),
    "zero": Option(min=0, max=3, help="Show this ZeRO stage alone."),
    "tensor": Option(min=1, help="Show this number of ranks that share each layer."),
    "recompute": Option(help="Compute layers again in the backward pass; default: where needed."),
    "sequence_parallel": Option(help="Split norms and dropout by tokens."),
    "peak": Option(min=0.001, max=1e6, help="TFLOP/s of a device in bf16."),
    "efficiency": Option(min=0.01, max=1, help="Share of the peak that computing reaches."),
    "link": Option(min=0.001, max=1e6, help="GB/s of a device within its machine."),
    "network": Option(min=0.001, max=1e6, help="GB/s of a device to other machines."),
    "node": Option(min=1, max=2**20, help="Devices of a machine; limits the tensor size."),
    "plot": Option(help="File for the chart (.svg)."),
}


ADAPT_OWN = {
    "model": Option(metavar="MODEL", help="A trained model: a folder (bertree, Hugging Face), a run, or: default."),
    "corpus": Option(metavar="TEXTS", help="A folder or file of text of your domain, or a token store."),
    "minutes": Option(min=0, max=1e6, help="How long to train.", default="as --epochs says, at most 30 minutes"),
    "epochs": Option(min=0, max=1e6, help="Passes over the text.", default="at most 3"),
    "task": Option(help="Task to fine-tune before and after, to see what adaptation brings: sst-2, classification ..."),
    "data": Option(help="The task's files, as in `bertree finetune`."),
    "text": Option(help="Column with the text, in tables of TEXTS and of the task."),
    "seeds": Option(min=1, max=1000, help="Fine-tuning runs before and after; each seed is compared with itself."),
    "task_settings": Option(
        flags=("--task-setting",), metavar="key=value", help="Setting of the fine-tuning: epochs=2; may be repeated."
    ),
}


def register(app: typer.Typer) -> None:
    """Add the verbs to the application."""
    python_verb(app, "pretraining.adapt.adapt", ("model", "corpus", "settings"), panel=TRAIN, own=ADAPT_OWN)(adapt)
    python_verb(app, "pretraining.pretrain.pretrain", ("recipe", "settings"), panel=TRAIN, on_ranks=True)(pretrain)
    python_verb(app, "pretraining.plan.plan", ("model", "settings"), panel=LOOK, own=PLAN_OWN)(plan)
    verbs = typer.Typer(no_args_is_help=True)
    python_verb(verbs, "pretraining.recipe.recipes", (), name="list")(list_recipes)
    python_verb(verbs, "pretraining.recipe.recipe", ("name", "settings"), name="show", json=False, own=RECIPE)(
        show_recipe
    )
    app.add_typer(verbs, name="recipe", help="List the recipes, or show every value of one.", rich_help_panel=LOOK)


def adapt(run: "Run", options: SimpleNamespace) -> None:
    """Adapt a trained model to the text of your domain: continue its pretraining, and measure before and after.

    Tokenizes TEXTS, holds out some documents, chooses rate, batch size and length for model, text and device, and
    trains: BERT-like models by masked tokens, left-to-right models by the next one. OUT receives model/, report.html
    and everything a pretraining run has. With --task, both models are fine-tuned with the same seeds.

    [dim]bertree adapt default reports/ --out adapted
    bertree adapt path/to/bert reports/ --out adapted --minutes 60
    bertree adapt default reports/ --out adapted --epochs 2 --task classification --data tickets.csv
    bertree adapt default reports/ --out adapted --resume[/dim]
    """
    from rich.console import Console

    from bertree.cli.render import make_table
    from bertree.report.run_page import BEFORE_AFTER, before_after_rows
    from bertree.run_folder import METRICS, MODEL, REPORT, SCORES

    def show(run: "Run") -> None:
        Console().print(make_table(*BEFORE_AFTER, rows=before_after_rows(run.metrics)))
        print(f"{run.folder}: {MODEL}/, {REPORT}, {SCORES}, {METRICS}")

    end_run(run, options.as_json, show)


def pretrain(run: "Run", options: SimpleNamespace) -> None:
    """Pretrain a model from a recipe: masked or next tokens, and next sentence or sentence order where it says so.

    OUT receives model/, checkpoints/, metrics.jsonl and report.html. Ctrl-C saves and stops; --resume continues, and
    the result is the same to the byte as without the stop.

    [dim]bertree pretrain bert-base-tiny --store my-store --out my-run
    bertree pretrain roberta-base --store my-store --out my-run lr=4e-4 steps=20000 warmup=1000
    bertree pretrain my-recipe.toml --out my-run --resume
    bertree pretrain bert-base-tiny --store new-text --out adapted model.start=my-run/model
    bertree pretrain transformer-xl-tiny --store my-store --out my-xl[/dim]
    """
    from bertree.run_folder import CHECKPOINTS, METRICS, MODEL, REPORT

    end_run(run, options.as_json, lambda run: print(f"{run.folder}: {MODEL}/, {REPORT}, {METRICS}, {CHECKPOINTS}/"))


def list_recipes(notes: dict[str, str], options: SimpleNamespace) -> None:
    """List the built-in recipes.

    [dim]bertree recipe list[/dim]
    """
    from bertree.cli.render import make_console, make_table

    if options.as_json:
        print_json(notes)
        return
    make_console().print(make_table("recipe", "", rows=notes.items()))


def show_recipe(recipe: Any, options: SimpleNamespace) -> None:
    """Print a recipe with every value it will be run with, as TOML.

    [dim]bertree recipe show bert-base lr=2e-4[/dim]
    """
    from bertree.config.settings import as_toml

    sys.stdout.write(as_toml(recipe))


def plan(memory_plan: "Plan", options: SimpleNamespace) -> None:
    """Plan a training on many devices: what fits, what is sent, how long it takes; and the mesh to take.

    Nothing is trained and no device is needed. ZeRO shards what a device keeps over those that read other data: from
    stage 1 on the optimizer, from 2 on the gradients, from 3 on the weights. Tensor parallelism splits each layer among
    devices of one machine. Memory is that of the moment when a device needs most; each mesh is shown with the fastest
    micro-batches that fit.

    [dim]bertree plan megatron-gpt-8.3b --devices 64 --card 80 --tokens 300e9
    bertree plan t-nlg-17b --devices 256 --card 32 --peak 125 --link 150 --network 12.5
    bertree plan bert-large layers=48 --devices 4 --card 24 --zero 3
    bertree plan megatron-bert-3.9b --devices 8 --plot plan.svg[/dim]
    """
    from bertree.cli.render import make_console
    from bertree.cli.render.devices import print_plan

    if options.as_json:
        print_json(memory_plan.as_dict())
        return
    print_plan(make_console(), memory_plan)
    if options.plot is not None:
        print(f"\n{options.plot}: the chart")
