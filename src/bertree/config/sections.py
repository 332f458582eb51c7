"""The sections that every training run has: optimizer, schedule, phases, and how it is computed and watched."""

from dataclasses import dataclass
from typing import Annotated

from bertree.config.settings import Above, AtLeast, AtMost, OneOf, Share

LARGEST_SEED = 2**62
LARGEST_BATCH = 2**26  # tokens
OPTIMIZERS = ("adamw", "adam", "lamb", "muon", "sgd")
SHAPES = ("linear", "cosine", "constant")
RATE_SCALINGS = {"linear": 1.0, "sqrt": 0.5, "none": 0.0}  # the power of batch_factor
PRECISIONS = {"float32": "fp32", "bfloat16": "bf16"}  # synonyms of the words that are written


@dataclass(frozen=True)
class OptimSettings:
    """The optimizer."""

    name: Annotated[str, OneOf(OPTIMIZERS)] = "adamw"
    lr: Annotated[float, Above(0)] = 1e-4
    betas: Annotated[tuple[float, float], Share()] = (0.9, 0.999)
    eps: Annotated[float, Above(0)] = 1e-6
    # Not on biases and norms. adam and sgd add it to the gradient (L2), the others to the step.
    weight_decay: Annotated[float, AtLeast(0)] = 0.01
    clip: Annotated[float, AtLeast(0)] = 1.0  # largest norm of the gradient; 0: no limit
    # rate of each layer as a multiple of the layer's above it; heads have the whole rate, embeddings the lowest
    layer_decay: Annotated[float, Above(0), AtMost(1)] = 1.0
    momentum: Annotated[float, Share()] = 0.95  # muon: of the layers' matrices; sgd: of everything
    nesterov: bool = False  # sgd: the momentum looks one step ahead
    matrix_rate: Annotated[float, Above(0)] = 1.0  # muon: their learning rate, as a multiple of lr


@dataclass(frozen=True)
class ScheduleSettings:
    """The learning rate over the run."""

    shape: Annotated[str, OneOf(SHAPES)] = "linear"  # after the warm-up
    warmup: Annotated[int, AtLeast(0)] = 0  # steps in which the rate rises from 0
    final: Annotated[float, Share()] = 0.0  # share of the rate that is left at the end
    growth: Annotated[int, AtLeast(1)] = 1  # up to this factor the batch grows instead of the rate's decay
    batch_factor: Annotated[int, AtLeast(1)] = 1  # each step reads this many batches, and the rate is scaled with it
    rate_scaling: Annotated[str, OneOf(tuple(RATE_SCALINGS))] = (
        "linear"  # by batch_factor, its square root, or not at all
    )


@dataclass(frozen=True)
class Phase:
    """A part of the run with one sequence length and one batch size."""

    steps: Annotated[int, AtLeast(1)] = 0
    max_length: Annotated[int, AtLeast(1)] = 512
    batch_tokens: Annotated[int, AtLeast(1), AtMost(LARGEST_BATCH)] = 131072
    mask_rate: Annotated[float, Share()] = 0.0  # in this phase; 0: the data's. Held-out text always has the data's


@dataclass(frozen=True)
class ScaleSettings:
    """How a run is spread over the processes that were started together (docs/scale.md)."""

    data: Annotated[int, AtLeast(0)] = 0  # ranks that read different batches; 0: what is left of the processes
    tensor: Annotated[int, AtLeast(1)] = 1  # ranks that hold pieces of the same tensors
    # What data ranks share: 1: optimizer state, 2: gradients too, 3: weights too; 0: each has all of them.
    zero: Annotated[int, AtLeast(0), AtMost(3)] = 0
    shard: Annotated[int, AtLeast(0)] = 0  # neighbours that share one copy; 0: all data ranks
    sequence_parallel: bool = False  # tensor ranks share norms and dropout by tokens
    offload: bool = False  # weights, gradients and optimizer state in the host's memory while they are not used


@dataclass(frozen=True)
class RunSettings:
    """How a run is computed, watched and saved."""

    seed: Annotated[int, AtLeast(0), AtMost(LARGEST_SEED)] = 0
    device: str = "auto"  # cuda where there is one
    # auto: bf16 on a GPU that has it, else fp32
    precision: Annotated[str, OneOf(("auto", "bf16", "fp32"), PRECISIONS)] = "auto"
    compile: Annotated[str, OneOf(("auto", "yes", "no"))] = "auto"  # auto: on a GPU
    deterministic: bool = True  # the same bytes every time
    micro_tokens: Annotated[int, AtLeast(0)] = 0  # tokens in a micro-batch; 0: as many as suit the device
    recompute: bool = False  # activations again in the backward pass: less memory, a third more work
    log_every: Annotated[int, AtLeast(1)] = 50
    eval_every: Annotated[int, AtLeast(1)] = 1000
    eval_tokens: Annotated[int, AtLeast(1)] = 262144  # of held-out text
    save_every: Annotated[int, AtLeast(1)] = 1000
    keep: Annotated[int, AtLeast(1)] = 2  # newest checkpoints; the best is kept as well
    bad_steps: Annotated[int, AtLeast(1)] = 20  # steps in a row without a finite gradient after which the run stops
    tensorboard: bool = False
