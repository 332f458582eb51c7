"""The sections that every training run has: optimizer, schedule, phases, and how it is computed and watched."""

from dataclasses import dataclass
from typing import Annotated

from bertree.config.settings import Above, AtLeast, AtMost, OneOf, Share, setting

LARGEST_SEED = 2**62
LARGEST_BATCH = 2**26  # tokens
OPTIMIZERS = ("adamw", "adam", "lamb", "muon", "sgd")
SHAPES = ("linear", "cosine", "constant")
RATE_SCALINGS = {"linear": 1.0, "sqrt": 0.5, "none": 0.0}  # the power of batch_factor
PRECISIONS = {"float32": "fp32", "bfloat16": "bf16"}  # synonyms of the words that are written


@dataclass(frozen=True)
class OptimSettings:
    """The optimizer."""

    name: Annotated[str, OneOf(OPTIMIZERS)] = setting("adamw", "the optimizer")
    lr: Annotated[float, Above(0)] = setting(1e-4, "the highest learning rate of the schedule")
    betas: Annotated[tuple[float, float], Share()] = setting((0.9, 0.999), "decay of the averages of Adam and LAMB")
    eps: Annotated[float, Above(0)] = setting(1e-6, "added to the denominator of a step of Adam and LAMB")
    weight_decay: Annotated[float, AtLeast(0)] = setting(
        0.01, "not on biases and norms; adam and sgd add it to the gradient (L2), the others to the step"
    )
    clip: Annotated[float, AtLeast(0)] = setting(1.0, "largest norm of the gradient; 0: no limit")
    layer_decay: Annotated[float, Above(0), AtMost(1)] = setting(
        1.0,
        "rate of a layer as a multiple of that of the layer above; heads have the whole rate, embeddings the lowest",
    )
    momentum: Annotated[float, Share()] = setting(0.95, "muon: of the layers' matrices; sgd: of everything")
    nesterov: bool = setting(False, "sgd: the momentum looks one step ahead")
    matrix_rate: Annotated[float, Above(0)] = setting(1.0, "muon: learning rate of the matrices, as a multiple of lr")


@dataclass(frozen=True)
class ScheduleSettings:
    """The learning rate over the run."""

    shape: Annotated[str, OneOf(SHAPES)] = setting("linear", "how the rate falls after the warm-up")
    warmup: Annotated[int, AtLeast(0)] = setting(0, "steps in which the rate rises from 0")
    final: Annotated[float, Share()] = setting(0.0, "share of the rate that is left at the end")
    growth: Annotated[int, AtLeast(1)] = setting(1, "factor up to which the batch grows while the rate stays as it is")
    batch_factor: Annotated[int, AtLeast(1)] = setting(1, "batches of a step; the rate is scaled with it")
    rate_scaling: Annotated[str, OneOf(tuple(RATE_SCALINGS))] = setting(
        "linear", "the rate is multiplied by batch_factor, by its square root, or by nothing"
    )


@dataclass(frozen=True)
class Phase:
    """A part of the run with one sequence length and one batch size. The first part is `phases.0`."""

    steps: Annotated[int, AtLeast(1)] = setting(0, "batches of this phase; must be set")
    max_length: Annotated[int, AtLeast(1)] = setting(512, "tokens of a sequence")
    batch_tokens: Annotated[int, AtLeast(1), AtMost(LARGEST_BATCH)] = setting(131072, "tokens of a batch")
    mask_rate: Annotated[float, Share()] = setting(
        0.0, "share of masked tokens in this phase; 0: data.mask_rate, which held-out text always has"
    )


@dataclass(frozen=True)
class ScaleSettings:
    """How a run is spread over the processes that were started together (docs/scale.md)."""

    data: Annotated[int, AtLeast(0)] = setting(0, "ranks that read different batches; 0: processes / tensor")
    tensor: Annotated[int, AtLeast(1)] = setting(1, "ranks that hold shards of the same tensors")
    zero: Annotated[int, AtLeast(0), AtMost(3)] = setting(
        0, "what data ranks share: 1: optimizer state, 2: gradients too, 3: weights too; 0: each has all of them"
    )
    shard: Annotated[int, AtLeast(0)] = setting(0, "neighboring ranks that share one copy; 0: all data ranks")
    sequence_parallel: bool = setting(False, "tensor ranks split norms and dropout by tokens")
    offload: bool = setting(
        False, "weights, gradients and optimizer state are in the host's memory while they are not used"
    )


@dataclass(frozen=True)
class RunSettings:
    """How a run is computed, watched and saved."""

    seed: Annotated[int, AtLeast(0), AtMost(LARGEST_SEED)] = setting(0, "of weights, order, masks and dropout")
    device: str = setting("auto", "cpu, cuda, cuda:1 ...; auto: a GPU if there is one")
    precision: Annotated[str, OneOf(("auto", "bf16", "fp32"), PRECISIONS)] = setting(
        "auto", "bfloat16 or float32; auto: bf16 on a GPU that has it, else fp32"
    )
    compile: Annotated[str, OneOf(("auto", "yes", "no"))] = setting("auto", "torch.compile; auto: on a GPU")
    deterministic: bool = setting(True, "the same bytes every time")
    micro_tokens: Annotated[int, AtLeast(0)] = setting(0, "tokens of a micro-batch; 0: as many as suit the device")
    recompute: bool = setting(False, "compute activations again in the backward pass: less memory, a third more work")
    log_every: Annotated[int, AtLeast(1)] = setting(50, "steps between two lines of the log")
    eval_every: Annotated[int, AtLeast(1)] = setting(1000, "pretraining: steps between two evaluations")
    eval_tokens: Annotated[int, AtLeast(1)] = setting(
        262144, "pretraining: tokens of held-out text that an evaluation reads"
    )
    save_every: Annotated[int, AtLeast(1)] = setting(1000, "steps between two checkpoints")
    keep: Annotated[int, AtLeast(1)] = setting(2, "newest checkpoints that are kept; the best is kept as well")
    bad_steps: Annotated[int, AtLeast(1)] = setting(
        20, "the run stops after so many steps in a row without a finite gradient"
    )
    tensorboard: bool = setting(False, "write the log for TensorBoard too")
