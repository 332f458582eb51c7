"""The design space: presets, axes, and what a point costs."""

from functools import lru_cache
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from bertree.errors import UserError
from bertree.model import space
from bertree.model.presets import PRESETS, preset
from bertree.serve.http.handlers import Context, Input, route
from bertree.serve.routes.inputs import field_error


class PointRequest(Input):
    """A preset with other values on some axes, and the batch of a training step."""

    preset: str
    changes: dict[str, str | int | float | bool] = msgspec.field(default_factory=dict)
    length: Annotated[int, Meta(ge=1)] | None = None
    batch: Annotated[int, Meta(ge=1)] = 1


class SpaceQuery(Input):
    """The batch that the presets' memory and operations are computed for; texts are no longer than a preset reads."""

    length: Annotated[int, Meta(ge=1, le=2**20)] = 512
    batch: Annotated[int, Meta(ge=1, le=2**20)] = 1


@route("GET", "/space")
async def design_space(context: Context, query: SpaceQuery) -> Any:
    """Return the presets, what they cost, and the axes of the design space."""
    return await context.call_in_helper(_space, tuple(PRESETS), query.length, query.batch)


@lru_cache(maxsize=32)
def _space(names: tuple[str, ...], length: int, batch: int) -> dict[str, Any]:
    return {"presets": space.describe_presets(length, batch), "axes": space.describe_axes()}


@route("POST", "/space")
async def design_point(context: Context, body: PointRequest) -> Any:
    """Return parameters, memory and operations of a point, or why there is no such point."""
    try:
        preset(body.preset)
    except UserError as error:
        raise field_error("preset", error) from None
    try:
        point = await context.call_in_helper(space.describe_point, body.preset, body.changes, body.length, body.batch)
        return {"valid": True} | point
    except UserError as error:
        return {"valid": False, "message": str(error)}
