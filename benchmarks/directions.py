"""Left to right, right to left, both, or masked: four models of the same shape on the same tokens, then the same tasks.

    python -m benchmarks.directions work --store STORE --task sst-2=glue/SST-2 ner=conll2003 --seeds 3
    python -m benchmarks.directions work --store STORE --task ner=conll2003 --cells mlm both phases.0.steps=500

All read full-sentences. `both` has the layers of `forward` and of `backward`, on the same embeddings, so it has almost
twice the parameters and takes twice the operations; all others have the same number. A task is fine-tuned with each
seed, and with `--frozen` its head is also trained on the sum of all layers of the frozen model. Cells may run side by
side in processes of their own, with the same folder.
"""

import json
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import bertree
from benchmarks.common import Results, argument_parser
from bertree.model.cost import parameters

CELLS = {
    "mlm": ("model.attention=full", "data.masking=token"),
    "forward": (),
    "backward": ("model.direction=backward",),
    "both": ("model.direction=both",),
}
# What all cells change in the recipe: sentences between [CLS] and [SEP], norms first, which learn sooner.
SHARED = ("data.format=full-sentences", "model.residual=pre-norm", "model.embedding_norm=true")


def run_cell(options: Any, cell: str, seed: int) -> dict[str, float]:
    """Pretrain one model, fine-tune it on the tasks, and return its figures."""
    out = options.work / cell / str(seed)
    changes = [*SHARED, *CELLS[cell], *(change for change in options.changes if "=" in change)]
    begun = time.perf_counter()
    bertree.pretrain(
        options.recipe,
        store=options.store,
        out=out / "run",
        resume=(out / "run").exists(),
        seed=seed,
        overrides=changes,
    )
    seconds = time.perf_counter() - begun
    lines = [json.loads(line) for line in (out / "run" / "metrics.jsonl").read_text().splitlines()]
    evaluated = [line for line in lines if line["kind"] == "eval"][-1]
    trained = [line for line in lines if line["kind"] == "train"][-1]
    figures = {
        "million_parameters": parameters(bertree.load(out / "run").architecture).total / 1e6,
        "tokens": trained["tokens"],
        "seconds": seconds,
        "held_out_loss": evaluated["loss"],
    }
    for name, _, data in (task.partition("=") for task in options.task):
        for kind in ("", *(["frozen"] if options.frozen else [])):
            settings = [*options.finetune, *(["readout.frozen=sum-all"] if kind else [])]
            tuned = bertree.finetune(
                out / "run", task=name, data=data, out=out / f"{name}{kind}", seed=seed, overrides=settings
            )
            figures[f"{name}{'_' * bool(kind)}{kind}_percent"] = 100 * tuned.metrics[tuned.metrics["metric"]]
    return figures


def main() -> None:
    """Run the cells and print their means over the seeds."""
    parser = argument_parser(__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("changes", nargs="*", metavar="SETTING=VALUE", help="of the recipe")
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--recipe", default="gpt1-tiny")
    parser.add_argument("--task", nargs="*", default=[], metavar="TASK=FOLDER")
    parser.add_argument("--finetune", nargs="*", default=[], metavar="SETTING=VALUE", help="of fine-tuning")
    parser.add_argument("--frozen", action="store_true", help="also train heads on frozen models")
    parser.add_argument("--cells", nargs="*", choices=CELLS, default=list(CELLS))
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_intermixed_args()
    results = Results("directions", options.out, note=f"{options.recipe}, {options.seeds} seeds")
    for cell in options.cells:
        runs = [run_cell(options, cell, seed) for seed in range(options.seeds)]
        figures: dict[str, float] = {"seeds": options.seeds}
        for key in runs[0]:
            values = [run[key] for run in runs]
            figures[key] = round(mean(values), 4)
            if len(values) > 1 and key.endswith(("_loss", "_percent")):
                figures[f"{key}_deviation"] = round(stdev(values), 4)
        results.add(cell, **figures)
    results.print_table()


if __name__ == "__main__":
    main()
