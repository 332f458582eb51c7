"""What costs every test process time and proves nothing."""

import gc
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hypothesis import settings


def skip_syncs() -> None:
    """Do not wait for the disk: only a power failure could lose what the kernel has taken, and no test has one."""
    os.fsync = os.fdatasync = _check_open


def _check_open(file: int) -> None:
    os.fstat(file)  # a closed file is an error, as it was


def forget_constants() -> None:
    """Draw examples without the constants of our modules: hypothesis parses each of them, in every test process, and
    the examples of a test would follow from what was imported before it."""
    from hypothesis.internal.conjecture import providers

    providers._get_local_constants = lambda: providers._local_constants


def keep_for_good() -> None:
    """Collect garbage from now on, but seldom, and not among what is there: modules and tests stay to the end."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


def example_count(count: int) -> "settings":
    """Settings of a property test: so many examples with --proofs, a share of them without."""
    from hypothesis import settings

    return settings(max_examples=min(count, max(10, count * settings().max_examples // 100)))
