"""The commands that are killed: at least one for every verb that writes, and one for every option that writes."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

CPU = "device=cpu"
SHORT = f"{CPU} lr=3e-3 dropout=0.1 max_length=32 batch=16 epochs=2 evaluations=2 log_every=1"
INDEX = "--chunk 12 --overlap 3 --device cpu"
DISTIL = "schedule.warmup=2 phases.0.steps=6 phases.0.max_length=32 phases.0.batch_tokens=512 run.micro_tokens=256"
ADAPT = "phases.0.steps=6 phases.0.max_length=32 phases.0.batch_tokens=512 run.micro_tokens=256"
WATCH = "run.log_every=1 run.eval_every=3 run.save_every=1 run.eval_tokens=512"
# Verbs that write nothing.
READING = {
    *("info", "fill", "recipe list", "recipe show", "store verify", "predict", "similar", "index query"),
    *("index info", "verify", "generate", "perplexity", "attribute", "store info", "study list", "study show"),
    "study compare",
    "study report",  # writes again what `study run` writes at its end
    *("serve", "deploy ray", "mcp"),
    "index export",  # writes to a database: tests/search/test_postgres_kill.py kills it
}
WRITING_OPTIONS = {"--out", "--submission", "--cache", "--force", "--plot", "--template"}


@dataclass(frozen=True)
class Case:
    """A command that writes below `work/`, and what must hold when it is killed."""

    name: str
    verb: str
    arguments: str
    first: str = ""  # a command that is run before, so that there is something to replace
    atomic: tuple[str, ...] = ("out",)  # files and folders that are always as they were or as they will be
    resumed: str = ""  # what is added when it is run again
    index: str = ""  # the folder of the index that it writes
    stdin: str = ""
    readers: tuple[str, ...] = ()  # commands that read what it writes: they see the old or the new
    unfinished: bool = False  # what it writes is there before it is complete, and readers are told so
    once: bool = False  # when it has ended, running it again comes to something else
    trains: bool = False
    ranks_times: bool = False  # its page orders rows by times: it is whole or not
    coarse_log: bool = False  # its log has mean losses of several steps; when it is resumed, a mean begins anew
    slow: bool = False  # it is killed at a few random moments only
    plant: Callable[[], None] | None = None  # a fault to plant in the process, for tests

    @property
    def words(self) -> list[str]:
        """The command line."""
        return f"{self.verb} {self.arguments}".split()


def _training(name: str, verb: str, arguments: str) -> Case:
    return Case(
        name, verb, f"{arguments} --out out", atomic=("out/model",), resumed="--resume", readers=("verify out",),
        unfinished=True, trains=True,
    )  # fmt: skip


READ_INDEX = ("verify index", "index query index good --mode words")
SCORED = ("out/metrics.json", "out/predictions.jsonl", "out/report.html")
CASES = (
    Case("tokenizer train", "tokenizer train", "text.txt --vocab-size 300 --out out"),
    Case(
        "tokenizer train, replacing", "tokenizer train", "text.txt --vocab-size 300 --out out",
        "tokenizer train text.txt --vocab-size 250 --out out",
    ),
    Case("tokenizer train, standard input", "tokenizer train", "- --vocab-size 300 --out out", stdin="text.txt"),
    Case(
        "prepare", "prepare", "text.txt --tokenizer tokenizer --out out --workers 1 --deduplicate",
        atomic=("out/store.json",), readers=("verify out", "store info out"), unfinished=True,
    ),
    Case(
        "prepare, two workers", "prepare", "text.txt --tokenizer tokenizer --out out --workers 2",
        atomic=("out/store.json",), slow=True,
    ),
    Case("store show", "store show", "store --format segment-pair --max-length 64", atomic=("store/store.json",)),
    _training("pretrain", "pretrain", "bert.toml --store store"),
    _training("adapt", "adapt", f"base text.txt {ADAPT} {WATCH} run.device=cpu"),
    _training("finetune", "finetune", f"start --task sst-2 --data glue --seeds 2 {SHORT}"),
    _training(
        "distill, text", "distill",
        f"base --store store --cache cache --seconds 0.1 {DISTIL} {WATCH} run.device=cpu distill.top_k=8 distill.cos=0",
    ),
    _training(
        "distill, task", "distill", f"task/model --student start --task sst-2 --data glue --seconds 0.1 {SHORT}"
    ),
    _training("embeddings train", "embeddings train", f"start --data sts --loss cosine {SHORT}"),
    Case("embed", "embed", "start lines.txt --device cpu --out out/v.npy", atomic=("out/v.npy",)),
    Case("index build", "index build", f"start old.jsonl {INDEX} --out out", index="out", readers=("verify out",)),
    Case("index build, hnsw", "index build", f"start old.jsonl {INDEX} --kind hnsw --out out", index="out"),
    Case("index add", "index add", "index new.jsonl --device cpu", index="index", readers=READ_INDEX),
    Case("index remove", "index remove", "index --where group=g1", index="index", readers=READ_INDEX),
    Case(
        "index evaluate", "index evaluate", "index --questions questions.jsonl --device cpu --tune --out out",
        atomic=("out/metrics.json", "out/report.html"), index="index", once=True,
    ),
    Case(
        "index mine", "index mine", "index --questions questions.jsonl --device cpu --out out/m.jsonl",
        atomic=("out/m.jsonl",),
    ),
    Case("index upgrade", "index upgrade", "index", index="index", readers=READ_INDEX),
    Case("convert", "convert", "start out --to bertree", readers=("verify out",)),
    Case(
        "convert, replacing", "convert", "start out --to huggingface --force", "convert base out --to bertree",
        readers=("verify out", "info out"),
    ),
    Case("features", "features", "start few.txt --layers sum-all --device cpu --out out"),
    Case(
        "evaluate", "evaluate", "task/model --task sst-2 --data glue --split test --device cpu --out out "
        "--submission server", atomic=(*SCORED, "server/SST-2.tsv"),
    ),
    Case(
        "evaluate, replacing", "evaluate", "task/model --task sst-2 --data glue --device cpu --out out",
        "evaluate task/model --task sst-2 --data glue --split train --device cpu --out out", SCORED,
    ),
    Case("embeddings evaluate", "embeddings evaluate", "start --data sts/dev.csv --device cpu --out out"),
    Case(
        "study run", "study run", "study.toml --store store --tasks glue --out out", atomic=("out/study.toml",),
        trains=True,
    ),
    Case(
        "glue", "glue", "--protocol start --data glue --examples 20 --device cpu --out out", atomic=(),
        trains=True, coarse_log=True,
    ),
    Case("study run, template", "study run", "bert-size --template out.toml", atomic=("out.toml",)),
    Case("layers", "layers", "start --texts few.txt --device cpu --out out.html", atomic=("out.html",)),
    Case(
        "advise", "advise", "--task similarity --models start --device cpu --out out.html", atomic=("out.html",),
        ranks_times=True, slow=True,
    ),
    Case("plan", "plan", "bert-base --devices 2 --plot out.svg", atomic=("out.svg",)),
    Case("pairs", "pairs", "start few.txt --device cpu --min-similarity 0.1 --out out/p.csv", atomic=("out/p.csv",)),
    Case("cluster", "cluster", "start few.txt --device cpu --clusters 4 --out out/c.jsonl", atomic=("out/c.jsonl",)),
    Case(
        "compare", "compare", "task/model task/model --task sst-2 --data glue --device cpu --seconds 0.1 --out out",
        atomic=("out/comparison.json", "out/report.html"), ranks_times=True,
    ),
)  # fmt: skip
if find_spec("onnx") and find_spec("onnxscript"):
    CASES = (*CASES, Case("convert, ONNX", "convert", "start out --to onnx", slow=True))


def verbs() -> dict[str, set[str]]:
    """Return every verb of the command line with its options."""
    import typer

    from bertree.cli.main import app

    def walk(command: Any, path: str) -> dict[str, set[str]]:
        if below := getattr(command, "commands", None):
            return {name: value for key, part in below.items() for name, value in walk(part, f"{path} {key}").items()}
        return {path.strip(): {name for option in command.params for name in option.opts}}

    return walk(typer.main.get_command(app), "")


def uncovered() -> list[str]:
    """Return what no case covers: verbs, and options that write."""
    missing = []
    for verb, options in verbs().items():
        used = {word for case in CASES if case.verb == verb for word in case.words}
        if not used and verb not in READING:
            missing.append(verb)
        missing += [f"{verb} {option}" for option in sorted(options & WRITING_OPTIONS) if option not in used]
    return missing
