"""What costs every test process time and proves nothing."""

import gc
import os


def skip_syncs() -> None:
    """Do not wait for the disk: only a power failure could lose what the kernel has taken, and no test has one."""
    os.fsync = os.fdatasync = _check_open


def _check_open(file: int) -> None:
    os.fstat(file)  # a closed file is an error, as it was


def keep_for_good() -> None:
    """Collect garbage from now on, but not among what is there: modules and collected tests stay to the end."""
    gc.freeze()
    gc.enable()
