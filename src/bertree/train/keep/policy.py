"""What a run keeps, and when it is evaluated: the part of a session that pretraining and fine-tuning do not share."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch import Tensor

from bertree.files.formats import Json
from bertree.train.checkpoints.contents import Checkpoint
from bertree.train.checkpoints.folder import CheckpointFolder
from bertree.train.hooks import RunLog, StepLogger
from bertree.train.loop import Hook, StepResult


class KeepPolicy(ABC):
    """What is kept of a run."""

    checkpoints: int  # how many stay on disk
    pause: float  # seconds between two checkpoints, at least
    saves_last: bool  # whether the last step is saved in any case

    @abstractmethod
    def evaluator(self, last: int, log: RunLog, logger: StepLogger) -> Hook:
        """Return what evaluates after a step, when it is time. `last` is the last step."""

    @abstractmethod
    def resume(self, checkpoint: Checkpoint | None) -> None:
        """Take back what a checkpoint kept. None: none is good, the run starts from the beginning."""

    @abstractmethod
    def finish(self, last: int, folder: CheckpointFolder) -> None:
        """Do what is left after the last step."""

    def stop_reason(self) -> str | None:
        """Return why the run should stop before its last step, if it should."""
        return None

    def is_complete(self, checkpoint: Checkpoint | None, last: int) -> bool:
        """Return whether the run that wrote a checkpoint came to its end."""
        return False

    def extra(self) -> Json:
        """Return what a checkpoint keeps in its header."""
        return {}

    def tensors(self) -> Mapping[str, Tensor]:
        """Return what a checkpoint keeps beside weights and optimizer state."""
        return {}

    def after_save(self, result: StepResult, folder: CheckpointFolder) -> None:  # noqa: B027
        """Do what is left after a checkpoint was written."""

    def check(self, checkpoint: Checkpoint) -> None:  # noqa: B027
        """Refuse a checkpoint that cannot be of this run."""
