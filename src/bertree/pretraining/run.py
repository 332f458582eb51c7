"""Pretrain a model from a recipe: `bertree.pretrain`.

OUT/recipe.toml, environment.json     the settings, the machine and the versions
OUT/metrics.jsonl, report.html        the log for programs, the page for people
OUT/checkpoints/                      to resume from
OUT/model/                            the final model
"""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bertree.config.default_model import resolve_model_path
from bertree.config.overrides import overrides_of
from bertree.config.sections import Phase
from bertree.config.settings import as_toml, differences
from bertree.console import note, notes_shown, showing
from bertree.data.masking import UNMASKED
from bertree.data.store import Store
from bertree.errors import UserError
from bertree.files.atomic import exclusive_lock, remove_leftovers
from bertree.files.formats import Json
from bertree.inference.run import Run
from bertree.interop.contents import Contents
from bertree.interop.folder import write_together
from bertree.model import cost
from bertree.model.cost import describe_architecture
from bertree.objectives.objective import Objective, WeightedTerms
from bertree.objectives.pretraining import TERMS, pretraining_objective
from bertree.pretraining import build, minutes
from bertree.pretraining import recipe as recipes
from bertree.pretraining.micro_batches import micro_batches_of
from bertree.pretraining.recipe import DistillRecipe, Recipe
from bertree.run_folder import (
    BEST_MODEL,
    CHECKPOINTS,
    ENVIRONMENT,
    METRICS,
    MODEL,
    RECIPE,
    REPORT,
    make_folders,
)
from bertree.scale.distribute import Distribution, distribute
from bertree.scale.launch import launched
from bertree.scale.tensor import check_tensor
from bertree.scale.world import World, join
from bertree.train.checkpoints.folder import BEST
from bertree.train.device import Placement, set_deterministic, uses_gpu
from bertree.train.feed import AnyStream, StreamFeed
from bertree.train.held_out import MaskSamples, evaluate_held_out
from bertree.train.keep.newest_and_best import KeepNewestAndBest
from bertree.train.loop import Loop
from bertree.train.optim import build_optimizer
from bertree.train.schedule import TrainingPlan
from bertree.train.session import Session

# What a resumed run may change: how it is watched, not what is learned.
WATCHING = {
    *("name", "note", "run.log_every", "run.eval_every", "run.eval_tokens", "run.save_every", "run.keep"),
    *("run.tensorboard", "run.bad_steps", "run.device"),
    *("scale.data", "scale.tensor", "scale.zero", "scale.shard", "scale.sequence_parallel", "scale.offload"),
}


def pretrain(
    recipe: str | Path,
    *,
    store: str | Path | None = None,
    out: str | Path = "run",
    resume: bool = False,
    overrides: Sequence[str] = (),
    progress: bool | None = None,
    **settings: Any,
) -> Run:
    """Pretrain a model from a recipe: the name of a built-in one, or the path of a TOML file.

    `store` is the token store to learn from. Settings are keywords (`optim={"lr": 1e-4}`, `lr=1e-4`) that change the
    recipe; `overrides` are the same as strings (`"optim.lr=1e-4"`). With `resume=True` an interrupted run goes on from
    its newest checkpoint and ends in the same bytes. Nothing is printed unless `progress=True`.

    >>> run = bertree.pretrain("bert-base-tiny", store="my-store", out="my-run")
    >>> run.model.fill_mask("The captain went down to the [MASK].")
    """
    launch = launched()
    with showing(progress if launch.rank == 0 else False), notes_shown(launch.rank == 0):
        given = overrides_of({"data.store": str(store)} if store is not None else {})
        found = resolve_paths(recipes.load(str(recipe), [*given, *overrides, *overrides_of(settings)]))
        if isinstance(found, DistillRecipe):
            raise UserError(
                f"{recipe}: is a recipe for a student; use it with: bertree distill TEACHER --student {recipe} ..."
            )
        scale = found.scale
        sizes = {"data": scale.data, "tensor": scale.tensor, "zero": scale.zero, "shard": scale.shard}
        with join(launch, cuda=uses_gpu(found.run), **sizes) as world:
            return _pretrain(found, Path(out), resume or launch.restarts > 0, world)


def _pretrain(recipe: Recipe, out: Path, resume: bool, world: World) -> Run:
    with ExitStack() as stack:
        recipe = world.check_together(lambda: minutes.with_kept_steps(recipe, out) if resume else recipe)
        world.check_together(lambda: open_folder(recipe, out, resume, stack) if world.is_first else None)
        training = world.check_together(lambda: _build(recipe, out, resume, world))
        for what, text in training.identity.items():
            world.check_same(what, json.dumps(text))
        return training.run(out, resume)


def open_folder(recipe: Recipe, out: Path, resume: bool, stack: ExitStack) -> None:
    """Take possession of the folder of a run until the stack is closed."""
    check_run_folder(recipe, out, resume)
    stack.enter_context(make_folders(out, out / CHECKPOINTS))
    stack.enter_context(exclusive_lock(out))
    remove_leftovers(run_files(out))


def _build(recipe: Recipe, out: Path, resume: bool, world: World) -> "PretrainingRun":
    """Build the parts of a run."""
    set_deterministic(recipe.run.deterministic)
    machine = Placement.from_settings(recipe.run)
    train, held = build.open_stores(recipe.data)
    if machine.compiled and not build.can_be_compiled(recipe.data, train):
        note("data.format: lanes that start at documents vary in shape, so steps are not compiled")
        machine = replace(machine, compiled=False)
    contents = build.build_model(recipe, train)
    check_tensor(contents.architecture, world.tensor)
    contents.network.to(machine.device)
    plan = TrainingPlan(recipe.phases, recipe.schedule, recipe.optim.lr)
    a, objective = contents.architecture, pretraining_objective(**recipe.objective)
    begun = micro_batches_of(out / CHECKPOINTS, recipe.phases) if resume else ()
    feed = build.build_feed(recipe, plan, train, machine, a, world=world, counts=begun)
    identity: Json = {"text in data.store": train.fingerprint, "held-out text": held.fingerprint}
    return PretrainingRun(
        recipe,
        machine,
        held,
        contents,
        feed,
        contents.network,
        objective,
        objective,
        [
            cost.training_flops(a, phase.max_length, mask_share(recipe, phase), by_query_stream(recipe))
            for phase in recipe.phases
        ],
        identity | build.identity_of_lanes(feed),
        world,
    )


@dataclass(frozen=True)
class PretrainingRun:
    """The built parts of a run over a token store."""

    recipe: Recipe
    machine: Placement
    held: Store
    contents: Contents  # the model that is written
    feed: StreamFeed
    learner: nn.Module  # the network of that model, or a module around it that is not kept
    objective: Objective  # the loss
    asked: WeightedTerms  # what is evaluated on held-out text
    flops: Sequence[float]  # a token, in each phase
    identity: Json  # what must be the same when the run is resumed
    world: World = field(default_factory=World.alone)

    def run(self, out: Path, resume: bool, intro: Sequence[str] = ()) -> Run:
        """Train, or resume training, and write the model."""
        recipe, network, world = self.recipe, self.contents.network, self.world
        parameters = sum(parameter.numel() for parameter in network.parameters())
        distribution = world.check_together(self._distribute)
        optimizer = world.check_together(lambda: build_optimizer(self.learner, recipe.optim, distribution=distribution))
        held_out = build.held_out_lanes if recipe.data.in_lanes else build.held_out_stream
        measured: list[AnyStream] = [held_out(recipe, self.held, phase) for phase in recipe.phases]
        loop = Loop(
            self.learner,
            self.objective,
            optimizer,
            clip=recipe.optim.clip,
            seed=recipe.run.seed,
            bf16=self.machine.bf16,
            compiled=self.machine.compiled and not distribution.compiled,
            bad_steps=recipe.run.bad_steps,
            distribution=distribution,
        )
        # Samples show masks being filled; there are none where the text is left as it is.
        filled = (
            any(TERMS[name].head == "mask" for name in self.asked.terms)
            and build.masking_of(recipe.data).unit not in UNMASKED
        )
        # Lanes have no examples: a stream of the same text has.
        shown = replace(recipe, data=replace(recipe.data, format="stream")) if recipe.data.in_lanes else recipe
        samples = MaskSamples(build.held_out_stream(shown, self.held, recipe.phases[0])) if filled else None
        keep = KeepNewestAndBest(
            out,
            loop,
            recipe.run.keep,
            recipe.run.eval_every,
            evaluate=lambda step: loop.without_gradients(
                lambda: evaluate_held_out(
                    network, self.asked, measured[step.phase], recipe.run.eval_tokens, loop.autocast, loop.device
                )
            ),
            samples=lambda: (
                loop.without_gradients(lambda: samples(network, loop.autocast, loop.device)) if samples else []
            ),
            write_model=lambda name: write_together(self.contents, out / name, world),
        )
        try:
            counted = ""
            if recipe.run.minutes and not minutes.has_begun(out):
                recipe, counted = minutes.count_out(recipe, loop, self.feed)
            identity = self.identity | minutes.identity(recipe)
            session = Session(
                out, as_toml(recipe), loop, self.feed, recipe.run, identity, keep, self.flops, parameters, counted
            )
            signal = session.run(resume, [*self._intro(), *([counted] if counted else []), *intro])
        except torch.OutOfMemoryError:
            raise UserError(
                "the GPU's memory is full; compute less at once (run.micro_tokens=...) or recompute activations "
                "(run.recompute=true)"
            ) from None
        return Run(out, signal=signal)

    def _distribute(self) -> Distribution:
        """Spread the network over the ranks; a student is whole on each, because its terms read states of layers."""
        scale, network = self.recipe.scale, self.contents.network
        if self.learner is not network:
            network.encoder.recompute(self.recipe.run.recompute)
            return Distribution(self.world)
        return distribute(
            network,
            self.world,
            zero=scale.zero,
            sequence_parallel=scale.sequence_parallel,
            bf16=self.machine.bf16,
            recompute=self.recipe.run.recompute,
            compiled=self.machine.compiled and self.world.joined,
            offload=scale.offload,
        )

    def _intro(self) -> list[str]:
        """Describe the run in two lines."""
        machine, streams = self.machine, self.feed.streams[0]
        where = f"{machine.device}, {'bf16' if machine.bf16 else 'fp32'}{', compiled' if machine.compiled else ''}"
        if self.world.joined:
            where += f"; {self.world.data} data x {self.world.tensor} tensor ranks, ZeRO {self.recipe.scale.zero}"
        count = self.feed.micro_batches[0]
        cut = f" in {count} micro-batches" if count > 1 else ""
        return [
            f"{describe_architecture(self.contents.architecture)} on {where}",
            f"{streams[0].store.tokens:,} tokens to learn from, {self.held.tokens:,} held out; {len(self.feed.plan):,} "
            f"steps, the first of {streams[0].batch_tokens:,} tokens{cut}, sequences of up to {streams[0].max_length}",
        ]


def run_files(out: Path) -> list[Path]:
    """Return what a pretraining run writes; checkpoints clean up after themselves."""
    names = (RECIPE, ENVIRONMENT, METRICS, REPORT, MODEL, BEST_MODEL, f"{CHECKPOINTS}/{BEST}")
    return [out / name for name in names]


def mask_share(recipe: Recipe, phase: Phase) -> float:
    """Return the share of the tokens that are predicted."""
    return build.masking_of(recipe.data, phase.mask_rate).share


def by_query_stream(recipe: Recipe) -> bool:
    """Return whether tokens are predicted by a second stream, in the order of a permutation."""
    return build.masking_of(recipe.data).unit == "permutation"


def resolve_paths(recipe: Recipe) -> Recipe:
    """Make the paths of a recipe absolute."""
    store, held_out = (path and str(Path(path).resolve()) for path in (recipe.data.store, recipe.data.held_out))
    start = recipe.model.get("start")
    axes = recipe.model | (
        {"start": str(resolve_model_path(start).resolve())} if isinstance(start, str) and start else {}
    )
    return replace(recipe, data=replace(recipe.data, store=store, held_out=held_out), model=axes)


def check_run_folder(recipe: Recipe, out: Path, resume: bool) -> None:
    """Refuse to write over a run, or to resume it with other settings. A run that saved nothing may start again."""
    if not recipe.data.store:
        raise UserError("data.store: is not set; give the folder of a token store: `store=my-store`")
    there = out / RECIPE
    begun = minutes.has_begun(out)
    if resume and there.is_file() and begun:
        before = resolve_paths(recipes.load(str(there)))
        changed = [key for key in differences(before, recipe) if key not in WATCHING]
        if changed:
            raise UserError(
                f"{out}: was started with another {changed[0]}; resume with the recipe in {there}, "
                "or start a new run in another `out`"
            )
    elif begun:
        raise UserError(f"{out}: holds a run already; resume it with `resume=True`, or give another `out`")
