"""Pretrain a model from a recipe: `bertree.pretrain`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertree.config.overrides import overrides_of
from bertree.errors import UserError
from bertree.inference.load import Run
from bertree.objectives.pretraining import pretraining_objective
from bertree.pretraining import build
from bertree.pretraining import recipe as recipes
from bertree.pretraining.job import StoreJob, Trainee, execute_store_job
from bertree.pretraining.recipe import DistillRecipe
from bertree.train.device_setup import DeviceSetup
from bertree.train.metrics_log import Callback, calling


def pretrain(
    recipe: str | Path,
    *,
    store: str | Path | None = None,
    out: str | Path = "run",
    resume: bool = False,
    overrides: Sequence[str] = (),
    progress: bool | None = None,
    on_step: Callback | None = None,
    on_evaluation: Callback | None = None,
    on_save: Callback | None = None,
    **settings: Any,
) -> Run:
    """Pretrain a model from a recipe: the name of a built-in one, or the path of a TOML file.

    `store` is the token store to learn from. Settings are keywords (`optim={"lr": 1e-4}`, `lr=1e-4`) that change the
    recipe; `overrides` are the same as strings (`"optim.lr=1e-4"`). `resume=True` continues an interrupted run from its
    newest checkpoint, and the result has the same bytes. Nothing is printed unless `progress=True`.
    `on_step`, `on_evaluation` and `on_save` are functions that get a `TrainingEvent` (docs/python.md).

    >>> run = bertree.pretrain("bert-base-tiny", store="my-store", out="my-run")
    >>> run.model.fill_mask("The captain went down to the [MASK].")
    """
    stores = overrides_of({"data.store": str(store)} if store is not None else {})
    loaded = build.resolve_paths(recipes.load(str(recipe), [*stores, *overrides, *overrides_of(settings)]))
    if isinstance(loaded, DistillRecipe):
        raise UserError(f"{recipe}: is a recipe for a student; give it to bertree distill, as its student")

    def build_job(device_setup: DeviceSetup) -> StoreJob:
        train, held_out = build.open_stores(loaded.data)

        def build_trainee() -> Trainee:
            contents, objective = build.build_model(loaded, train), pretraining_objective(**loaded.objective)
            return Trainee(contents=contents, network=contents.network, objective=objective, evaluated=objective)

        return StoreJob(recipe=loaded, train=train, held_out=held_out, build_trainee=build_trainee)

    with calling(on_step, on_evaluation, on_save):
        return execute_store_job(build_job, loaded, out=out, resume=resume, progress=progress)
