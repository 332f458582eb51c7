"""The verbs `distill` and `compare`: help texts (their docstrings) and output. `python_verb` adds their options."""

from types import SimpleNamespace
from typing import TYPE_CHECKING

import typer

from bertree.cli.command import CHECK, TRAIN, end_run, print_json, python_verb
from bertree.cli.options import Option

if TYPE_CHECKING:
    from bertree.inference.load import Run
    from bertree.report.comparison import Comparison


def register(app: typer.Typer) -> None:
    """Add the verbs to the application."""
    own = {
        "teacher": Option(metavar="TEACHER", help="Folder of the trained model to learn from."),
        "task": Option(help="Task to learn instead, as in `bertree finetune`."),
        "layers": Option(help="The teacher's layers the student begins with, from 1: 1,3,5; else evenly spread."),
        "seconds": Option(min=0, max=86400, help="Time for timing teacher and student; 0: no timing."),
    }
    python_verb(app, "distillation.distill.distill", ("teacher", "settings"), panel=TRAIN, own=own, on_ranks=True)(
        distill
    )
    own = {
        "models": Option(
            metavar="MODEL OTHER [MORE ...]", help="Folders or presets; the first is compared with the others."
        ),
        "task": Option(help="Task of --data: sst-2, squad, ner ...", default="the models' own"),
        "data": Option(help="Score them too: folder with a task's files, or one file."),
        "device": Option(help="cpu, cuda, cuda:1 ...; auto: CPU and, where there is one, GPU."),
        "seconds": Option(min=0.1, max=86400, help="Time for timing, all models together."),
        "published": Option(help="Show what papers report on the task of --data too."),
        "training": Option(help="Time training steps too (forward, backward, AdamW), as long again."),
        "out": Option(help="Folder for comparison.json and report.html."),
    }
    python_verb(app, "comparison.compare.compare", ("models",), panel=CHECK, own=own)(compare)


def distill(run: "Run", options: SimpleNamespace) -> None:
    """Train a smaller model with a larger one as its teacher: on text (--store) or on a task (--task).

    On text, the student learns the teacher's distribution at masked tokens, the tokens themselves and the direction of
    the teacher's states: DistilBERT's three terms, weighted distill.ce=5 objective.mlm=2 distill.cos=1 at
    distill.temperature=2; 0 switches one off; distill.start=random copies no layers. Students of another width:
    distill.hidden=1 (states between) and distill.relation=1 (MiniLM) help. A sentence encoder teaches its vectors:
    distill.vector=4 distill.ce=0. The text must be prepared with the teacher's tokenizer.

    On a task, a teacher that was fine-tuned for it labels the examples: alpha=0.5 of the loss comes from labels, the
    rest from the teacher, softened by temperature=2; kind=soft, hard or mse (logits). copies=20 adds that many altered
    copies of every text, for students like bilstm.

    OUT receives model/, the report, and how teacher and student compare: size, speed, score. Under torchrun all
    processes share the batches of each step.

    [dim]bertree distill my-bert --store my-store --out small
    bertree distill my-bert --student bert-small --store my-store --out small distill.relation=1 distill.cos=0
    bertree distill my-bert --store my-store --out no-cos distill.cos=0
    bertree distill my-sbert/model --store my-store --out small distill.ce=0 distill.vector=4 data.format=doc-sentences
    bertree distill my-sst/model --task sst-2 --data glue/SST-2 --student bilstm --out tiny kind=mse alpha=0 copies=20
    bertree distill my-qa/model --task squad --data squad --student small/model --out small-qa[/dim]
    """
    from bertree.cli.render.scores import print_comparison, print_finetuning
    from bertree.report.comparison import read_comparison
    from bertree.run_folder import CHECKPOINTS, COMPARISON, METRICS, MODEL, REPORT

    def show(run: "Run") -> None:
        if options.store is None:
            print_finetuning(run)
            return
        print(f"{run.folder}: {MODEL}/, {REPORT}, {METRICS}, {CHECKPOINTS}/")
        if (run.folder / COMPARISON).is_file():
            print_comparison(read_comparison(run.folder / COMPARISON))

    end_run(run, options.as_json, show)


def compare(comparison: "Comparison", options: SimpleNamespace) -> None:
    """Measure models against the first: parameters, bytes, latency, throughput and, with a task, score.

    Latency is that of one text at a time (median, 90th percentile; from ids, and with tokenization), throughput that of
    many, packed and sorted by length. The models take turns on the same texts, so that other load on the machine
    affects all of them alike. With --data each is scored on the split that `evaluate` would take, timed on its examples
    with the task's head, and the share of the first model's score that is kept is shown, in red if it is significantly
    lower (paired bootstrap), with the calibration and, in the report, plots of score against cost and the examples on
    which models disagree; without, encoders alone are timed. --training adds the tokens per second of steps
    that train the encoders, on sequences of 128 random tokens.

    [dim]bertree compare teacher student --data glue/SST-2 --out versus
    bertree compare my-bert my-small-bert --texts mail.csv --text body --device cpu --seconds 60
    bertree compare bert-base distilbert-base albert-base --tokenizer my-bert --training[/dim]
    """
    from bertree.cli.render.scores import print_comparison
    from bertree.run_folder import COMPARISON, REPORT

    if options.as_json:
        print_json(comparison.as_json())
        return
    print_comparison(comparison)
    if options.out is not None:
        print(f"{options.out}: {COMPARISON}, {REPORT}")
