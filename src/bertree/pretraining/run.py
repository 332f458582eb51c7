"""The work behind `bertree pretrain` and `bertree config`: read the recipe, build the parts, run the loop.

OUT/recipe.toml, environment.json     what is run, and where
OUT/metrics.jsonl, report.html        what came of it, for programs and for people
OUT/checkpoints/                      to go on from
OUT/model/                            the final model
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from bertree.config import settings
from bertree.config.default_model import located
from bertree.config.sections import Phase
from bertree.data.store import Store
from bertree.errors import UserError
from bertree.files import Json, exclusive_lock
from bertree.interop import folder
from bertree.interop.folder import Contents
from bertree.model import cost
from bertree.model.cost import describe_architecture
from bertree.objectives.objective import Asks, Objective
from bertree.objectives.pretraining import pretraining
from bertree.pretraining import build
from bertree.pretraining import recipe as recipes
from bertree.pretraining.recipe import DistillRecipe, Recipe
from bertree.run_folder import (
    BEST_MODEL,
    CHECKPOINTS,
    ENVIRONMENT,
    METRICS,
    MODEL,
    RECIPE,
    REPORT,
    make_folder,
    remove_leftovers,
)
from bertree.train import optim
from bertree.train.checkpoint import BEST, Checkpoints
from bertree.train.device import Machine, be_deterministic
from bertree.train.feed import Feed
from bertree.train.held_out import Samples, evaluate
from bertree.train.loop import Loop
from bertree.train.schedule import Plan
from bertree.train.session import Session

# What a resumed run may change: how it is watched, not what is learned.
WATCHING = {
    *("name", "note", "run.log_every", "run.eval_every", "run.eval_tokens", "run.save_every", "run.keep"),
    *("run.tensorboard", "run.bad_steps", "run.device"),
}


def show_recipe(name: str, overrides: list[str]) -> None:
    """`bertree config`: the whole recipe as it would be run."""
    recipe = recipes.load(name, overrides)
    sys.stdout.write(settings.as_toml(recipe))


def list_recipes() -> None:
    """`bertree config` alone: what there is."""
    table = Table("recipe", "", box=None, pad_edge=False)
    for name in recipes.bundled():
        table.add_row(name, recipes.load(name).note)
    Console().print(table)


def pretrain(name: str, overrides: list[str], out: Path, resume: bool) -> int:
    """`bertree pretrain`: train, or go on training. Returns the exit code: 0 when the run is complete."""
    recipe = resolved(recipes.load(name, overrides))
    if isinstance(recipe, DistillRecipe):
        raise UserError(f"{name}: is a recipe for a student; use it with: bertree distill TEACHER --student {name} ...")
    check_place(recipe, out, resume)
    make_folder(out, out / CHECKPOINTS)
    with exclusive_lock(out):
        remove_leftovers(run_files(out))
        be_deterministic(recipe.run.deterministic)
        machine = Machine.of(recipe.run)
        train, held = build.stores(recipe.data)
        contents = build.model(recipe, train)
        contents.network.to(machine.device)
        plan = Plan(recipe.phases, recipe.schedule, recipe.optim.lr)
        a, objective = contents.architecture, pretraining(**recipe.objective)
        training = Training(
            recipe,
            machine,
            held,
            contents,
            build.feed(recipe, plan, train, machine, a),
            contents.network,
            objective,
            objective,
            [cost.training_flops(a, phase.max_length, rate(recipe, phase)) for phase in recipe.phases],
            {"text in data.store": train.fingerprint, "held-out text": held.fingerprint},
        )
        return training.run(out, resume)


@dataclass(frozen=True)
class Training:
    """A run over a token store, built: what learns, from what, and how it is judged."""

    recipe: Recipe
    machine: Machine
    held: Store
    contents: Contents  # the model that is kept
    feed: Feed
    learner: nn.Module  # the network of that model, alone or within something that is thrown away
    objective: Asks  # what the learner minimises
    asked: Objective  # what the network is asked about held-out text
    flops: Sequence[float]  # a token, in each phase
    identity: Json  # what must be the same when the run is resumed

    def run(self, out: Path, resume: bool, intro: Sequence[str] = ()) -> int:
        """Train, or go on training, and write the model. The exit code."""
        recipe, network = self.recipe, self.contents.network
        network.encoder.stack.recompute = recipe.run.recompute
        measured = [build.held_out(recipe, self.held, phase) for phase in recipe.phases]
        loop = Loop(
            self.learner,
            self.objective,
            optim.build(self.learner, recipe.optim),
            clip=recipe.optim.clip,
            seed=recipe.run.seed,
            half=self.machine.half,
            compiled=self.machine.compiled,
            bad_steps=recipe.run.bad_steps,
        )
        # Samples show masks being filled; there are none where every token predicts the next.
        filled = "mlm" in self.asked.terms and build.masking(recipe.data).unit != "next"
        samples = Samples(measured[0]) if filled else None
        session = Session(
            out,
            settings.as_toml(recipe),
            loop,
            self.feed,
            recipe.run,
            measure=lambda step: evaluate(
                network, self.asked, measured[step.phase], recipe.run.eval_tokens, loop.autocast
            ),
            samples=lambda: samples(network) if samples else [],
            flops=self.flops,
            identity=self.identity,
            finish=lambda name: folder.write(self.contents, out / name),
        )
        try:
            signal = session.run(resume, [*self._intro(), *intro])
        except torch.OutOfMemoryError:
            raise UserError(
                "the GPU's memory is full; compute less at once (run.micro_tokens=...) or recompute activations "
                "(run.recompute=true)"
            ) from None
        if signal is not None:
            return 128 + signal
        print(f"{out}: {MODEL}/, {REPORT}, {METRICS}, {CHECKPOINTS}/")
        return 0

    def _intro(self) -> list[str]:
        """What is about to happen, in two lines."""
        machine, streams = self.machine, self.feed.streams[0]
        where = f"{machine.device}, {'bf16' if machine.half else 'fp32'}{', compiled' if machine.compiled else ''}"
        cut = f" in {len(streams)} micro-batches" if len(streams) > 1 else ""
        return [
            f"{describe_architecture(self.contents.architecture)} on {where}",
            f"{streams[0].store.tokens:,} tokens to learn from, {self.held.tokens:,} held out; {len(self.feed.plan):,} "
            f"steps, the first of {streams[0].batch_tokens:,} tokens{cut}, sequences of up to {streams[0].max_length}",
        ]


def run_files(out: Path) -> list[Path]:
    """Return what a pretraining run writes; checkpoints clean up after themselves."""
    names = (RECIPE, ENVIRONMENT, METRICS, REPORT, MODEL, BEST_MODEL, f"{CHECKPOINTS}/{BEST}")
    return [out / name for name in names]


def rate(recipe: Recipe, phase: Phase) -> float:
    """Share of the tokens that are asked about."""
    return build.masking(recipe.data, phase.mask_rate).share


def resolved(recipe: Recipe) -> Recipe:
    """Paths as they are found from anywhere."""
    store, held_out = (path and str(Path(path).resolve()) for path in (recipe.data.store, recipe.data.held_out))
    start = recipe.model.get("start")
    axes = recipe.model | ({"start": str(located(start).resolve())} if isinstance(start, str) and start else {})
    return replace(recipe, data=replace(recipe.data, store=store, held_out=held_out), model=axes)


def check_place(recipe: Recipe, out: Path, resume: bool) -> None:
    """A run is not written over, and not resumed as another one. One that never saved anything may begin anew."""
    if not recipe.data.store:
        raise UserError("data.store: is not set; give the folder of a token store: --store my-store")
    there, checkpoints = out / RECIPE, Checkpoints(out / CHECKPOINTS)
    begun = bool(checkpoints.steps()) or (out / MODEL).exists()
    if resume and there.is_file() and begun:
        before = resolved(recipes.load(str(there)))
        changed = [key for key in settings.differences(before, recipe) if key not in WATCHING]
        if changed:
            raise UserError(
                f"{out}: was started with another {changed[0]}; resume with the recipe in {there}, "
                "or start a new run in another --out"
            )
    elif begun:
        raise UserError(f"{out}: holds a run already; go on with it by --resume, or give another --out")
