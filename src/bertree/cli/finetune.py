"""The verbs `finetune`, `evaluate`, `predict`, `features`, `glue`."""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertree.cli.command import CHECK, TRAIN, USE, end_run, print_json, python_verb, verb
from bertree.cli.options import (
    OPTIONS,
    DeviceOption,
    JsonOption,
    LengthOption,
    ModelArgument,
    Option,
    TextOption,
    TokenizerOption,
)
from bertree.console import note
from bertree.errors import UserError

if TYPE_CHECKING:
    from bertree.comparison.glue import GlueSummary
    from bertree.finetuning.evaluate import Scores
    from bertree.finetuning.features import FeatureFiles
    from bertree.inference.load import Run

FILE_NAME = re.compile(r"\S+\.(?:txt|csv|tsv|jsonl|parquet)(?:\.(?:gz|xz|zst))?")
CHUNK = 1024  # lines read at once
EVALUATION = {
    "model": Option(
        metavar="MODEL [MODEL ...] [FILE]",
        help="A model folder, a run, or a preset; several with --ensemble. Then a file to score, in place of --data.",
    ),
    "ensemble": Option(help="Average the predictions of several models of one task."),
    "out": Option(help="Folder for metrics.json, predictions.jsonl, report.html."),
    "store": Option(help="Token store (see `bertree prepare`) for --task mlm, nsp or sop, in place of --data."),
    "split": Option(
        help="dev, test ...; of a store: held-out or all.",
        default="dev, else test, else what fine-tuning holds out; of a store held-out",
    ),
    "max_length": Option(min=0, help="Tokens per sequence; 0: as the model was fine-tuned; of a store 128."),
}


def register(app: typer.Typer) -> None:
    """Add the verbs to the application."""
    run = python_verb(app, "finetuning.finetune.finetune", ("model", "settings"), panel=TRAIN, on_ranks=True)
    run(finetune)
    python_verb(app, "finetuning.evaluate.evaluate", ("model",), panel=CHECK, own=EVALUATION)(evaluate)
    verb(app, panel=USE)(predict)
    folder = {
        "file": Option(metavar="FILE", help="A text file with one text per line, or .jsonl with text or words."),
        "out": Option(help="Folder to write."),
    }
    python_verb(app, "finetuning.features.write_features", ("model", "file"), panel=USE, own=folder)(features)
    runs = {
        "runs": Option(metavar="[RUN ...]", help="Folders of `finetune` or `evaluate --out`."),
        "published": Option(help="Show what papers report too, with their tables."),
        "protocol": Option(metavar="MODEL", help="Fine-tune this model on the tasks of --data, and score it."),
        "data": Option(help="With --protocol: the folder that holds the folders MNLI, QQP, SST-2 ..."),
        "out": Option(help="With --protocol: folder for glue.json and the runs."),
        "examples": Option(min=20, help="With --protocol: at most this many training rows of a task, for a trial."),
        "from_mnli": Option(help="With --protocol: STS-B, MRPC and RTE from the MNLI model too, as rows of their own."),
    }
    python_verb(app, "comparison.glue.glue", ("runs",), panel=CHECK, own=runs)(glue)


def finetune(run: "Run", options: SimpleNamespace) -> None:
    """Fine-tune a model on a task: classification, regression, tagging, spans, multiple choice.

    OUT receives model/, metrics.json, predictions.jsonl and, for each seed, a report. The best evaluation on the dev
    split counts; without a dev split a tenth of the examples is held out. Under torchrun all processes share the
    examples of each step: the same batch, the same result.

    Settings: epochs=3 batch=32 lr=(by the model's width) max_length=(the task's) warmup=0.1 shape=linear
    evaluations=1 (per epoch; 0: at the end) patience=3 held_out=0.1 ignore_dev=false seed=0 weight_decay=0.01 clip=1
    dropout=... attention_dropout=0 layer_decay=1 (rate of a layer as a multiple of that above) metric=...
    lstm=0 lstm_layers=2 micro_tokens=0 examples=(all) per_class=(all) pooled=(with --frozen)
    c=(chosen, for a head that is solved); SQuAD: stride=128 max_answer=30 best=20 threshold=0
    head=span (or beam: the end given the start); tags: crf=false scheme=auto. Left-to-right models:
    lm=0.5 (weight of the language-model loss on the task's texts), both_orders (of a pair; true for mrpc, qqp, sts-b),
    no_answer=last (SQuAD), subword=last (tags).

    [dim]bertree finetune my-bert --task sst-2 --data glue/SST-2 --out my-sst
    bertree finetune my-bert --task squad2 --data squad --out my-qa epochs=2 batch=16
    bertree finetune my-bert --task ner --data conll2003 --out my-ner --seeds 3 crf=true
    bertree finetune my-bert --task sst-2 --data glue/SST-2 --out my-linear --frozen
    bertree finetune my-bert --task sst-2 --data glue/SST-2 --out my-few --few-shot per_class=8
    bertree finetune my-bert --task ner --data conll2003 --out frozen --frozen concat-last-four lstm=256
    bertree finetune my-bert --task rte --data glue/RTE --from-task my-mnli --out my-rte epochs=5
    bertree finetune my-bert --task classification --data mail.csv --text body --label folder --out my-mail[/dim]
    """
    from bertree.cli.render.scores import print_finetuning

    end_run(run, options.as_json, print_finetuning)


def evaluate(scores: "Scores", options: SimpleNamespace) -> None:
    """Score a fine-tuned model on a task's files, as the task's own script does; or a pretrained one on text.

    Task, columns, labels and length are those the model was fine-tuned with. Each score comes with its 95 % confidence
    interval.

    With --store, a pretrained model predicts masked tokens (--task mlm), next (nsp) or swapped (sop) sentences of a
    token store that was made with its tokenizer: the documents that `pretrain` holds out, or --split all.

    --task cloze asks a masked model for the word that is left out of a sentence: of the bundled ones (trivia, syntax,
    coreference) or of --data, a file with text (one ___), word and kind. Shown are the shares at rank 1 and within 5,
    the mean reciprocal rank and the probability. A word of several tokens has a probability and no rank.

    --ensemble averages the predictions of several models: probabilities of classes, options and tags, numbers, or the
    logits of a span's first and last token. Their tokenizers may differ, except for spans.

    [dim]bertree evaluate my-sst --data glue/SST-2
    bertree evaluate my-mail mail.csv
    bertree evaluate my-sst other-sst third-sst --data glue/SST-2 --ensemble
    bertree evaluate my-sst --data glue/SST-2 --split test --submission for-the-server
    bertree evaluate hf-folder --task squad --data dev-v1.1.json --json
    bertree evaluate my-gpt --task questions --data questions.jsonl
    bertree evaluate my-bert --task mlm --store my-store
    bertree evaluate my-bert --task cloze[/dim]
    """
    from bertree.cli.render.scores import print_scores

    print_json(scores.metrics) if options.as_json else print_scores(scores)


def features(files: "FeatureFiles", options: SimpleNamespace) -> None:
    """Write an encoder's states for every word of a text: features for another program.

    OUT receives features.npy (words x width, float32; the state of a word is that of its first sub-word, or of its last
    if the model reads left to right) and words.jsonl (for each line its words, their character offsets and the row of
    the first). Sums are plain means, unless the model has learned its weights.

    [dim]bertree features my-bert news.txt --layers sum-last-four --out my-features[/dim]
    """
    from bertree.finetuning.features import FEATURES, WORDS

    if options.as_json:
        print_json(asdict(files) | {"folder": str(files.folder)})
    else:
        print(f"{files.folder}: {FEATURES} ({files.words:,} words x {files.width}), {WORDS} ({files.texts:,} texts)")


def glue(summary: "GlueSummary", options: SimpleNamespace) -> None:
    """Score a model on GLUE by one protocol, or collect the scores of runs, with the averages called GLUE score.

    With --protocol MODEL, the model is fine-tuned and scored in a way that is the same for every model and version, on
    MNLI, QQP, SST-2, CoLA, STS-B, MRPC and RTE, those whose folders are in --data. A tenth of the training rows, at
    most 2,000, is held out; the model is fine-tuned on the rest with the learning rates 2e-5, 4e-5, 8e-5 and 1.6e-4,
    three epochs each in batches of 32. With the best of them, three seeds are trained on all training rows and scored
    once on the dev split. OUT receives glue.json with all scores, and runs/ with the runs. Run the command again to
    continue after an interruption.

    [dim]bertree glue runs/cola runs/sst-2 runs/mrpc ...
    bertree glue --published
    bertree glue --protocol my-bert --data glue --out my-glue
    bertree glue --protocol my-bert --data glue --out trial --examples 500[/dim]
    """
    from bertree.cli.render.scores import print_glue

    print_json(asdict(summary)) if options.as_json else print_glue(summary)
    if summary.protocol is not None and summary.protocol.signal is not None:
        raise typer.Exit(128 + summary.protocol.signal)


def predict(
    model: ModelArgument,
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TEXT|FILE ...]",
            help="Texts, or files of them: .txt (one text per line), .jsonl, .csv, .tsv, .parquet; - or none: standard "
            "input.",
        ),
    ] = None,
    file: Annotated[Path | None, typer.Option(help="A file of texts.")] = None,
    literal: Annotated[bool, typer.Option("--literal", help="Take each TEXT as it is, even a path.")] = False,
    text: TextOption = None,
    pair: Annotated[str | None, OPTIONS["pair"].option()] = None,
    question: Annotated[str | None, typer.Option(help="A question about every TEXT (question answering).")] = None,
    max_length: LengthOption = 0,
    device: DeviceOption = "auto",
    tokenizer: TokenizerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict with a fine-tuned model: label with probability, entities, answer, or chosen option.

    Columns, labels and length are those the model was fine-tuned with. A line is a text; where the model reads pairs, a
    tab separates the two. A line that is a JSON object gives the parts by name: text, pair; words; question, context;
    context, question, options. With --json, one object is printed per line.

    [dim]bertree predict my-sst/model "What a film." "Not again."
    bertree predict my-ner news.txt --json
    bertree predict my-qa/model --question "Who wrote it?" "Moby Dick was written by Herman Melville."
    cat questions.jsonl | bertree predict my-race/model[/dim]
    """
    from bertree.files.formats import json_text
    from bertree.inference.load import choose_device, load

    if file is not None and texts:
        raise UserError("give texts or --file, not both")
    loaded = load(model, device=choose_device(device), tokenizer=tokenizer)
    try:
        task = loaded.find_task(text=text, pair=pair)
    except UserError as error:
        raise UserError(f"{model}: {error}") from None
    examples, predicted = _examples(task, texts or [], file, question, literal), 0
    while chunk := list(islice(examples, CHUNK)):
        for line in loaded.predict_examples(task, chunk, max_length):
            print(json_text(line) if as_json else task.prediction_text(line))
        predicted += len(chunk)
    if not predicted:
        inputs = file or ", ".join(text for text in texts or [] if text != "-") or "standard input"
        raise UserError(f"{inputs}: nothing to predict: the input is empty")


def _examples(task: Any, texts: Sequence[str], file: Path | None, question: str | None, literal: bool) -> Iterator[Any]:
    """Yield the examples to predict: those of files, of texts on the command line, or of standard input."""
    from bertree.tasks.files import parse_inputs, parse_line, read_inputs

    if file is not None:
        return read_inputs(task, file, question)
    if texts and list(texts) != ["-"]:
        files = [] if literal else _existing_files(texts)
        if files:
            note(f"reading {', '.join(map(str, files))}; for the path itself as a text: --literal")
            return chain.from_iterable(read_inputs(task, path, question) for path in files)
        places = ((f"text {number}", text) for number, text in enumerate(texts, 1))
        return parse_inputs(task, ((where, parse_line(text, where)) for where, text in places), "input", question)
    if sys.stdin.isatty():
        note("reading standard input, one text per line; end with Ctrl-D")
    places = ((f"standard input: line {number}", line.rstrip("\r\n")) for number, line in enumerate(sys.stdin, 1))
    return parse_inputs(task, ((where, parse_line(text, where)) for where, text in places), "standard input", question)


def _existing_files(texts: Sequence[str]) -> list[Path]:
    """Return the files that the arguments name, or nothing if they are texts."""
    paths = [Path(text) for text in texts if _exists(text)]
    if not paths and len(texts) == 1 and FILE_NAME.fullmatch(texts[0]):
        raise UserError(f"{texts[0]}: no such file; --literal predicts for the name itself")
    if folder := next((path for path in paths if path.is_dir()), None):
        raise UserError(f"{folder}: is a folder; give a file of texts, or --literal to predict for its name")
    if paths and len(paths) < len(texts):
        other = next(text for text in texts if Path(text) not in paths)
        raise UserError(f"{other:.60}: is no file, but {paths[0]} is; give files or texts, or --literal for texts")
    return paths


def _exists(text: str) -> bool:
    try:
        return bool(text.strip()) and Path(text).exists()
    except (OSError, ValueError):  # too long for a path, or with a zero byte
        return False
