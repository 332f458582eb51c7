"""The work behind `bertree pretrain` and `bertree config`: read the recipe, build the parts, run the loop.

OUT/recipe.toml, environment.json     what is run, and where
OUT/metrics.jsonl, report.html        what came of it, for programs and for people
OUT/checkpoints/                      to go on from
OUT/model/                            the final model
"""

import shutil
import sys
from dataclasses import asdict, replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from bertree import assembly, settings
from bertree import recipe as recipes
from bertree.data.store import Store
from bertree.errors import UserError
from bertree.files import alone
from bertree.info import describe_architecture
from bertree.interop import folder
from bertree.interop.folder import Contents
from bertree.interop.shipped import located
from bertree.model import cost
from bertree.objectives.pretraining import pretraining
from bertree.recipe import Phase, Recipe
from bertree.train import optim, report
from bertree.train.checkpoint import BEST, Checkpoints
from bertree.train.device import Machine, be_deterministic
from bertree.train.evaluate import Samples, evaluate
from bertree.train.feed import Feed
from bertree.train.loop import Loop
from bertree.train.plan import Plan
from bertree.train.record import ENVIRONMENT, METRICS, RECIPE
from bertree.train.session import BEST_MODEL, CHECKPOINTS, MODEL, Session

# What a resumed run may change: how it is watched, not what is learned.
WATCHING = {
    *("name", "note", "run.log_every", "run.eval_every", "run.eval_tokens", "run.save_every", "run.keep"),
    *("run.tensorboard", "run.bad_steps", "run.device"),
}


def show_recipe(name: str, overrides: list[str]) -> None:
    """`bertree config`: the whole recipe as it would be run."""
    recipe = recipes.load(name, overrides)
    assembly.axes_of(recipe)
    sys.stdout.write(settings.as_toml(recipe))


def list_recipes() -> None:
    """`bertree config` alone: what there is."""
    table = Table("recipe", "", box=None, pad_edge=False)
    for name in recipes.shipped():
        table.add_row(name, recipes.load(name).note)
    Console().print(table)


def pretrain(name: str, overrides: list[str], out: Path, resume: bool) -> int:
    """`bertree pretrain`: train, or go on training. Returns the exit code: 0 when the run is complete."""
    recipe = _resolved(recipes.load(name, overrides))
    _check_place(recipe, out, resume)
    with alone(out):
        _sweep(out)
        return _pretrain(recipe, out, resume)


def _pretrain(recipe: Recipe, out: Path, resume: bool) -> int:
    """Build the parts and run them."""
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
    # Samples show masks being filled; there are none where every token predicts the next.
    filled = recipe.objective.mlm and assembly.masking(recipe.data).unit != "next"
    samples = Samples(measured[0]) if filled else None
    session = Session(
        out,
        settings.as_toml(recipe),
        loop,
        feed,
        recipe.run,
        measure=lambda step: evaluate(
            loop.network, objective, measured[step.phase], recipe.run.eval_tokens, loop.autocast
        ),
        samples=lambda: samples(loop.network) if samples else [],
        flops=[cost.training_flops(contents.architecture, p.max_length, _rate(recipe, p)) for p in recipe.phases],
        identity={"text in data.store": train.fingerprint, "held-out text": held.fingerprint},
        finish=lambda name: folder.write(contents, out / name),
    )
    try:
        code = session.run(resume, _intro(contents, feed, held, machine), _note)
    except torch.OutOfMemoryError:
        raise UserError(
            "the GPU's memory is full; compute less at once (run.micro_tokens=...) or recompute activations "
            "(run.recompute=true)"
        ) from None
    if code == 0:
        print(f"{out}: {MODEL}/, {report.REPORT}, {METRICS}, {CHECKPOINTS}/")
    return code


def _rate(recipe: Recipe, phase: Phase) -> float:
    return assembly.masking(recipe.data, phase.mask_rate).share


def _resolved(recipe: Recipe) -> Recipe:
    """Paths as they are found from anywhere."""
    store, held_out = (path and str(Path(path).resolve()) for path in (recipe.data.store, recipe.data.held_out))
    start = recipe.model.get("start")
    axes = recipe.model | ({"start": str(located(start).resolve())} if isinstance(start, str) and start else {})
    return replace(recipe, data=replace(recipe.data, store=store, held_out=held_out), model=axes)


def _check_place(recipe: Recipe, out: Path, resume: bool) -> None:
    """A run is not written over, and not resumed as another one. One that never saved anything may begin anew."""
    if not recipe.data.store:
        raise UserError("data.store: is not set; give the folder of a token store: --store my-store")
    there, checkpoints = out / RECIPE, Checkpoints(out / CHECKPOINTS)
    begun = bool(checkpoints.steps()) or (out / MODEL).exists()
    if resume and there.is_file() and begun:
        before = _resolved(recipes.load(str(there)))
        changed = [key for key in settings.differences(before, recipe) if key not in WATCHING]
        if changed:
            raise UserError(
                f"{out}: was started with another {changed[0]}; resume with the recipe in {there}, "
                "or start a new run in another --out"
            )
    elif begun:
        raise UserError(f"{out}: holds a run already; go on with it by --resume, or give another --out")
    try:
        for folder in (out, out / CHECKPOINTS):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror})") from None


def _sweep(out: Path) -> None:
    """Remove what a run that was killed left half written; checkpoints look after their own."""
    for name in (RECIPE, ENVIRONMENT, METRICS, report.REPORT, MODEL, BEST_MODEL, f"{CHECKPOINTS}/{BEST}"):
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
