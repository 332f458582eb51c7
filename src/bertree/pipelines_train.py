"""The work behind `bertree pretrain` and `bertree config`: read the recipe, build the parts, run the loop.

OUT/recipe.toml, environment.json     what is run, and where
OUT/metrics.jsonl, report.html        what came of it, for programs and for people
OUT/checkpoints/                      to go on from
OUT/model/                            the final model
"""

import shutil
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bertree import assembly
from bertree import recipe as recipes
from bertree.data.store import Store
from bertree.errors import UserError
from bertree.info import describe_architecture
from bertree.interop import folder
from bertree.interop.folder import Contents
from bertree.model import cost
from bertree.objectives.pretraining import pretraining
from bertree.recipe import Recipe
from bertree.train import optim, report
from bertree.train.checkpoint import BEST
from bertree.train.device import Machine, be_deterministic
from bertree.train.evaluate import Samples, evaluate
from bertree.train.feed import Feed
from bertree.train.loop import Loop
from bertree.train.plan import Plan
from bertree.train.record import ENVIRONMENT, METRICS, RECIPE
from bertree.train.session import CHECKPOINTS, Session

# What a resumed run may change: how it is watched, not what is learned.
WATCHING = {
    *("name", "note", "run.log_every", "run.eval_every", "run.eval_tokens", "run.save_every", "run.keep"),
    *("run.tensorboard", "run.bad_steps", "run.device"),
}


def show_recipe(name: str, overrides: list[str]) -> None:
    """`bertree config`: the whole recipe as it would be run."""
    sys.stdout.write(recipes.as_toml(recipes.load(name, overrides)))


def list_recipes() -> None:
    """`bertree config` alone: what there is."""
    table = Table("recipe", "", box=None, pad_edge=False)
    for name in recipes.shipped():
        table.add_row(name, recipes.load(name).note)
    Console().print(table)


def pretrain(name: str, overrides: list[str], out: Path, resume: bool) -> int:
    """`bertree pretrain`: train, or go on training. Returns the exit code: 0 when the run is complete."""
    recipe = recipes.load(name, overrides)
    _check_place(recipe, out, resume)
    be_deterministic(recipe.run.deterministic)
    machine = Machine.of(recipe.run)
    train, held = assembly.stores(recipe.data)
    contents = assembly.model(recipe, train)
    contents.network.to(machine.device)
    contents.network.encoder.stack.recompute = recipe.run.recompute
    plan = Plan(recipe.phases, recipe.schedule, recipe.optim.lr)
    feed = assembly.feed(recipe, plan, train, machine, contents.architecture)
    measured = [assembly.held_out(recipe, held, phase) for phase in recipe.phases]
    objective = pretraining(**asdict(recipe.objective))
    loop = Loop(
        contents.network,
        objective,
        optim.build(contents.network, recipe.optim),
        clip=recipe.optim.clip,
        seed=recipe.run.seed,
        half=machine.half,
        compiled=machine.compiled,
        bad_steps=recipe.run.bad_steps,
    )
    samples = Samples(measured[0])
    session = Session(
        out,
        recipes.as_toml(recipe),
        loop,
        feed,
        recipe.run,
        lambda step: evaluate(loop.network, objective, measured[step.phase], recipe.run.eval_tokens, loop.autocast),
        lambda: samples(loop.network),
        [cost.training_flops(contents.architecture, phase.max_length) for phase in recipe.phases],
    )
    code = session.run(
        resume, _intro(contents, feed, held, machine), lambda: folder.write(contents, out / "model"), _note
    )
    if code == 0:
        print(f"{out}: model/, {report.REPORT}, {METRICS}, {CHECKPOINTS}/")
    return code


def _check_place(recipe: Recipe, out: Path, resume: bool) -> None:
    """A run is not written over, and not resumed as another one."""
    if not recipe.data.store:
        raise UserError("data.store: is not set; give the folder of a token store: data.store=my-store")
    there = out / RECIPE
    if resume and there.is_file():
        before = recipes.load(str(there))
        changed = [key for key in recipes.differences(before, recipe) if key not in WATCHING]
        if changed:
            raise UserError(
                f"{out}: was started with another {changed[0]}; resume with the recipe in {there}, "
                "or start a new run in another --out"
            )
    elif there.is_file():
        raise UserError(f"{out}: holds a run already; go on with it by --resume, or give another --out")
    elif resume:
        _note(f"{out}: nothing to resume, starting from the beginning")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror})") from None
    if resume:
        _sweep(out)


def _sweep(out: Path) -> None:
    """Remove what a run that was killed left half written; checkpoints look after their own."""
    for name in (RECIPE, ENVIRONMENT, METRICS, report.REPORT, "model", f"{CHECKPOINTS}/{BEST}"):
        target = out / name
        for leftover in target.parent.glob(f".{target.name}.*"):
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


def _intro(contents: Contents, feed: Feed, held: Store, machine: Machine) -> list[str]:
    """What is about to happen, in two lines."""
    streams = feed.streams[0]
    where = f"{machine.device}, {'bf16' if machine.half else 'fp32'}{', compiled' if machine.compiled else ''}"
    cut = f" in {len(streams)} micro-batches" if len(streams) > 1 else ""
    return [
        f"{describe_architecture(contents.architecture)} on {where}",
        f"{streams[0].store.tokens:,} tokens to learn from, {held.tokens:,} held out; {len(feed.plan):,} steps, the "
        f"first of {streams[0].batch_tokens:,} tokens{cut}, sequences of up to {streams[0].max_length}",
    ]


def _note(line: str) -> None:
    print(f"bertree: note: {line}", file=sys.stderr)
