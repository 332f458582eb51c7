"""A job on a token store, as `pretrain` and `distill` describe it, and its execution on all ranks.

OUT/recipe.toml, environment.json     the settings, the machine and the versions
OUT/metrics.jsonl, report.html        the log for programs, the page for people
OUT/checkpoints/                      to resume from
OUT/model/                            the final model
"""

import json
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from signal import SIGTERM

import torch
from torch import nn

from bertree.config.sections import Phase
from bertree.config.settings import as_toml, differences
from bertree.console import note, notes_shown, showing
from bertree.data.masking import UNMASKED
from bertree.data.store import Store
from bertree.errors import UserError
from bertree.files.atomic import RUN_KIND, exclusive_lock, make_folders, refuse_other, remove_leftovers
from bertree.files.formats import Json
from bertree.inference.load import Run
from bertree.interop import folder
from bertree.interop.contents import Contents
from bertree.interop.folder import write_together
from bertree.interop.huggingface.folder import problem_with_transformers
from bertree.model import cost
from bertree.objectives.objective import Objective, WeightedTerms
from bertree.objectives.pretraining import TERMS
from bertree.pretraining import build, time_budget
from bertree.pretraining import recipe as recipes
from bertree.pretraining.held_out import held_out_questions, held_out_stream
from bertree.pretraining.recipe import Recipe, naming_recipe
from bertree.report.formats import describe_architecture
from bertree.run_folder import BEST_MODEL, CHECKPOINTS, ENVIRONMENT, METRICS, MODEL, RECIPE, REPORT
from bertree.scale.distribute import Distribution, distribute
from bertree.scale.launch import launched
from bertree.scale.tensor import check_tensor
from bertree.scale.world import World, join
from bertree.train.checkpoint import BEST
from bertree.train.device_setup import DeviceSetup, set_deterministic, set_threads, uses_gpu
from bertree.train.feed import StreamFeed, TrainingSchedule
from bertree.train.held_out import MaskSamples, evaluate_questions
from bertree.train.keep import KeepNewestAndBest, StartModel
from bertree.train.loop import Loop
from bertree.train.metrics_log import announce_model
from bertree.train.optimizer import build_optimizer
from bertree.train.session import Session
from bertree.train.signals import catch_signals

# Settings that a resumed run may change: logging, evaluation and devices, not what is learned.
CHANGEABLE = {
    *("name", "note", "run.log_every", "run.eval_every", "run.eval_tokens", "run.save_every", "run.keep"),
    *("run.tensorboard", "run.bad_steps", "run.device"),
    *("scale.data", "scale.tensor", "scale.zero", "scale.shard", "scale.sequence_parallel", "scale.offload"),
}


@dataclass(frozen=True, kw_only=True)
class Trainee:
    """A model that learns from a token store, and its objective."""

    contents: Contents  # the model that is saved
    network: nn.Module  # what is trained: the network of that model, or a module around it that is not saved
    objective: Objective
    evaluated: WeightedTerms  # what is evaluated on held-out text
    logit_share: float = 0.0  # tokens whose logits over the vocabulary are computed, as a share; 0: the masked ones
    teacher_flops: Callable[[Phase], float] = lambda phase: 0.0  # of a token
    identity: Json = field(default_factory=dict)  # what else must be the same when the run is resumed
    intro: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class StoreJob:
    """What is trained on a token store: by `pretrain`, and by `distill` with a teacher."""

    recipe: Recipe
    train: Store
    held_out: Store
    build_trainee: Callable[[], Trainee]
    before_steps: Callable[["StoreTraining"], "StoreTraining"] = lambda training: training
    start: Path | None = None  # folder of the model to end with if none is better on held-out text
    after_steps: Callable[["StoreTraining"], None] | None = None  # on the first rank, if the run is complete


def execute_store_job(
    build_job: Callable[[DeviceSetup], StoreJob],
    settings: Recipe,
    *,
    out: str | Path,
    resume: bool = False,
    progress: bool | None = None,
) -> Run:
    """Build a job on every rank, lock the folder of the run and train. `settings` name the devices of the ranks."""
    launch, out, scale = launched(), Path(out), settings.scale
    resume = resume or launch.restarts > 0
    sizes = {"data": scale.data, "tensor": scale.tensor, "zero": scale.zero, "shard": scale.shard}
    with (
        showing(progress if launch.rank == 0 else False),
        notes_shown(launch.rank == 0),
        join(launch, cuda=uses_gpu(settings.run), **sizes) as world,
        ExitStack() as stack,
    ):

        @naming_recipe(settings)
        def build_training() -> StoreTraining:
            set_deterministic(settings.run.deterministic)
            device_setup = DeviceSetup.from_settings(settings.run)
            check_run_folder(settings, out, resume, only_new=True)
            job = build_job(device_setup)
            if resume:
                job = replace(job, recipe=time_budget.with_kept_steps(job.recipe, out))
            check_run_folder(job.recipe, out, resume)
            return _build_training(job, device_setup, out, resume, world)

        training = world.check_together(build_training)
        for what, text in training.identity.items():
            world.check_same(what, json.dumps(text))
        world.check_together(lambda: _open_folder(training.job.recipe, out, resume, stack) if world.is_first else None)
        training = training.job.before_steps(training)
        with catch_signals() as signals, naming_recipe(settings):
            run = training.run(resume)
        after_steps = training.job.after_steps
        if after_steps is None:
            return run
        if world.agree({"stop": int(signals.caught is not None)})["stop"]:
            return replace(run, signal=signals.caught or SIGTERM)  # it may have come while the model was written
        finish = run.complete and world.is_first
        world.check_together(lambda: after_steps(training) if finish else None)
        return run


def _open_folder(recipe: Recipe, out: Path, resume: bool, stack: ExitStack) -> None:
    """Lock the folder of a run until the stack is closed."""
    stack.enter_context(make_folders(out, out / CHECKPOINTS))
    stack.enter_context(exclusive_lock(out))
    check_run_folder(recipe, out, resume)  # again: building takes a while, and another run may have begun
    remove_leftovers(run_files(out))


def _build_training(job: StoreJob, device_setup: DeviceSetup, out: Path, resume: bool, world: World) -> "StoreTraining":
    """Build the model, its batches and what identifies the run."""
    recipe, trainee = job.recipe, job.build_trainee()
    if device_setup.compiled and not build.can_be_compiled(recipe.data, job.train):
        note("data.format: lanes that start at documents vary in shape, so steps are not compiled")
        device_setup = replace(device_setup, compiled=False)
    a = trainee.contents.architecture
    device_setup = replace(device_setup, compiled=device_setup.compiled and a.compilable)
    check_tensor(a, world.tensor)
    if not resume and (problem := problem_with_transformers(trainee.contents)):
        note(f"transformers will not open this model: {problem}")
    trainee.network.to(device_setup.device)
    set_threads(a.width, device_setup.device, out, resume)
    feed = build.build_feed(
        recipe,
        TrainingSchedule(recipe.phases, recipe.schedule, recipe.optim.lr),
        job.train,
        device_setup,
        a,
        logit_share=trainee.logit_share,
        world=world,
        counts=build.micro_batches_of(out / CHECKPOINTS, recipe.phases) if resume else (),
    )
    permuted = build.masking_of(recipe.data).unit == "permutation"  # a second stream predicts the tokens
    flops = [
        cost.training_flops(a, phase.max_length, build.mask_share(recipe, phase), permuted)
        + trainee.teacher_flops(phase)
        for phase in recipe.phases
    ]
    identity = {"text in data.store": job.train.fingerprint, "held-out text": job.held_out.fingerprint}
    return StoreTraining(
        job=job,
        out=out,
        trainee=trainee,
        device_setup=device_setup,
        feed=feed,
        flops=flops,
        identity=identity | trainee.identity | build.identity_of_lanes(feed),
        world=world,
    )


@dataclass(frozen=True, kw_only=True)
class StoreTraining:
    """A job with its model and batches built."""

    job: StoreJob
    out: Path
    trainee: Trainee
    device_setup: DeviceSetup
    feed: StreamFeed
    flops: Sequence[float]  # a token, in each phase
    identity: Json  # what must be the same when the run is resumed
    world: World
    intro: Sequence[str] = ()  # lines after those of the trainee
    loss_before: float = math.inf  # on held-out text, before the first step

    def run(self, resume: bool) -> Run:
        """Train, or resume training, and write the model."""
        recipe, world = self.job.recipe, self.world
        parameters = sum(parameter.numel() for parameter in self.trainee.contents.network.parameters())
        distribution = world.check_together(self._distribute)
        optimizer = world.check_together(
            lambda: build_optimizer(self.trainee.network, recipe.optim, distribution=distribution)
        )
        loop = Loop(
            self.trainee.network,
            self.trainee.objective,
            optimizer,
            clip=recipe.optim.clip,
            seed=recipe.run.seed,
            bf16=self.device_setup.bf16,
            compiled=self.device_setup.compiled and not distribution.compiled,
            bad_steps=recipe.run.bad_steps,
            distribution=distribution,
        )
        keep = self._keep(loop)
        try:
            budget = ""
            if recipe.run.minutes and not time_budget.has_begun(self.out):
                recipe, budget = time_budget.set_steps(recipe, loop, self.feed)
            session = Session(
                out=self.out,
                recipe=as_toml(recipe),
                loop=loop,
                feed=self.feed,
                settings=recipe.run,
                identity=self.identity | time_budget.identity(recipe),
                keep=keep,
                flops=self.flops,
                parameters=parameters,
                started=budget,
            )
            lines = [*self._intro(), *([budget] if budget else []), *self.trainee.intro, *self.intro]
            signal = session.run(resume, lines)
        except torch.OutOfMemoryError:
            raise UserError(
                "the GPU's memory is full; compute less at once (run.micro_tokens=...) or recompute activations "
                "(run.recompute=true)"
            ) from None
        if signal is None:
            last = len(session.feed.schedule)
            announce_model(self.out, self.out / MODEL, last, last)
        return Run(self.out, signal=signal)

    def _keep(self, loop: Loop) -> KeepNewestAndBest:
        """Return what is kept: the newest checkpoints and the one with the lowest held-out loss."""
        recipe, network, evaluated = self.job.recipe, self.trainee.contents.network, self.trainee.evaluated
        questions = [held_out_questions(recipe, self.job.held_out, phase, evaluated) for phase in recipe.phases]
        # Samples show masks being filled; there are none where the text is left as it is.
        fills_masks = any(TERMS[name].head == "mask" for name in evaluated.terms)
        samples = None
        if fills_masks and build.masking_of(recipe.data).unit not in UNMASKED:
            # Lanes have no examples: a stream of the same text has.
            shown = replace(recipe, data=replace(recipe.data, format="stream")) if recipe.data.in_lanes else recipe
            samples = MaskSamples(held_out_stream(shown, self.job.held_out, recipe.phases[0]))
        return KeepNewestAndBest(
            out=self.out,
            loop=loop,
            checkpoints=recipe.run.keep,
            eval_every=recipe.run.eval_every,
            evaluate=lambda step: loop.without_gradients(
                lambda: evaluate_questions(network, questions[step.phase], loop.autocast, loop.device)
            ),
            samples=lambda: (
                loop.without_gradients(lambda: samples(network, loop.autocast, loop.device)) if samples else []
            ),
            write_model=lambda name: write_together(self.trainee.contents, self.out / name, self.world),
            start=self._start_model(),
        )

    def _start_model(self) -> StartModel | None:
        """Return the model that the run must not end below, if there is one."""
        start = self.job.start
        if start is None:
            return None
        return StartModel(
            self.loss_before, lambda name: write_together(folder.read(start), self.out / name, self.world)
        )

    def _distribute(self) -> Distribution:
        """Spread the network over the ranks; a student has a full copy on each: its terms read hidden states."""
        recipe, network = self.job.recipe, self.trainee.contents.network
        if self.trainee.network is not network:
            network.encoder.recompute(recipe.run.recompute)
            return Distribution(self.world)
        return distribute(
            network,
            self.world,
            zero=recipe.scale.zero,
            sequence_parallel=recipe.scale.sequence_parallel,
            bf16=self.device_setup.bf16,
            recompute=recipe.run.recompute,
            compiled=self.device_setup.compiled and self.world.joined,
            offload=recipe.scale.offload,
        )

    def _intro(self) -> list[str]:
        """Describe the run in two lines."""
        streams, steps = self.feed.streams[0], len(self.feed.schedule)
        where = self.device_setup.description + (", compiled" if self.device_setup.compiled else "")
        if self.world.joined:
            where += f"; {self.world.data} data x {self.world.tensor} tensor ranks, ZeRO {self.job.recipe.scale.zero}"
        count = self.feed.micro_batches[0]
        micro_batches = f" in {count} micro-batches" if count > 1 else ""
        held_out = self.job.held_out.tokens
        return [
            f"{describe_architecture(self.trainee.contents.architecture)} on {where}",
            f"{streams[0].store.tokens:,} tokens to learn from, {held_out:,} held out; {steps:,} steps, the first of "
            f"{streams[0].batch_tokens:,} tokens{micro_batches}, sequences of up to {streams[0].max_length}",
        ]


def run_files(out: Path) -> list[Path]:
    """Return what a pretraining run writes; checkpoints clean up after themselves."""
    names = (RECIPE, ENVIRONMENT, METRICS, REPORT, MODEL, BEST_MODEL, f"{CHECKPOINTS}/{BEST}")
    return [out / name for name in names]


def check_run_folder(recipe: Recipe, out: Path, resume: bool, only_new: bool = False) -> None:
    """Refuse to write over a run, or to resume it with other settings. A run that saved nothing may start again.

    `only_new`: the settings are not compared, because they are not complete yet.
    """
    if not recipe.data.store:
        raise UserError("data.store: is not set; give the folder of a token store: `store=my-store`")
    refuse_other(out, RUN_KIND)
    path, begun = out / RECIPE, time_budget.has_begun(out)
    if begun and not (resume and path.is_file()):
        raise UserError(f"{out}: holds a run already; resume it with `resume=True`, or give another `out`")
    if not begun or only_new:
        return
    before = build.resolve_paths(recipes.load(str(path)))
    changed = [key for key in differences(before, recipe) if key not in CHANGEABLE]
    if changed:
        raise UserError(
            f"{out}: was started with another {changed[0]}; resume with the recipe in {path}, "
            "or start a new run in another `out`"
        )
