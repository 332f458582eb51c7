"""Memory and throughput of the ranks of a run, for its page."""

import math
from collections.abc import Sequence

from bertree.files.formats import Json
from bertree.report.formats import digits, quantity
from bertree.report.history import number
from bertree.report.tables import PageTable

MOST = 512  # ranks that are shown


def rank_table(train: Sequence[Json]) -> PageTable:
    """Return a row for each rank: its peak memory, and its mean throughput. There is none without ranks."""
    lines = [row["ranks"] for row in train if isinstance(row.get("ranks"), list)]
    ranks = [rank for rank in lines[-1] if isinstance(rank, dict)] if lines else []
    rows = []
    for place, rank in enumerate(ranks[:MOST]):
        beside = [line[place] for line in lines if place < len(line) and isinstance(line[place], dict)]
        speeds = [speed for one in beside if math.isfinite(speed := number(one.get("tokens_per_s")))]
        mean = quantity(sum(speeds) / len(speeds)) if speeds else "–"
        memory = number(rank.get("memory"))
        rows.append([str(place), f"{digits(memory / 2**30)} GiB" if math.isfinite(memory) else "–", mean])
    return PageTable(["rank", "peak memory", "tokens/s, mean"], rows, range(3))
