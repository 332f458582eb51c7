"""The kinds of input, one module for each group of files."""

from tests.fuzz.case import Kind
from tests.fuzz.kinds import checkpoints, indexes, models, others, recipes, stores, tables, tokenizers

ROOMS = (models, tokenizers, recipes, stores, checkpoints, indexes, tables, others)
KINDS: dict[str, Kind] = {kind.name: kind for room in ROOMS for kind in room.KINDS}
