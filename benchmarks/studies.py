"""Every cell of every study for a few steps, on made-up text and tasks: does it run?

    python -m benchmarks.studies work                           # all studies
    python -m benchmarks.studies work --only bert-size xl-speed --steps 3 --device cuda

Text, tokenizer, stores and the files of all tasks are made up below WORK; `ctrl-styles` gets a store with control
codes. A study that is done there is not run again.
The failures are printed by study, cell and step, with a JSON line for each study. A step that was not computed
because another has failed is counted with that one.
"""

import json
import random
import time
import warnings
from pathlib import Path

import bertree
from benchmarks.common import argument_parser
from bertree.inference.zero_shot import BLANK, read_probes
from bertree.study.load import bundled_studies, load_study

SUBJECTS = ("the sailor", "a farmer", "the old king", "my sister", "the doctor", "a stranger", "the teacher", "our dog")
VERBS = ("saw", "wanted", "sold", "carried", "lost", "painted", "found", "followed")
OBJECTS = ("a red ship", "the green house", "some bread", "the long road", "a small bird", "the letter", "an old coat")
PLACES = ("in London", "near the sea", "at night", "on Monday", "behind the hill", "in winter", "before the war")
DOCUMENTS, SENTENCES, ROWS = 400, 60, 12


def sentence(draw: random.Random) -> str:
    """Return a sentence."""
    words = [draw.choice(part) for part in (SUBJECTS, VERBS, OBJECTS, PLACES)]
    return f"{' '.join(words)}.".capitalize()


def write_text(path: Path, draw: random.Random) -> None:
    """Write documents with blank lines between them; the last one has the words of the cloze probes."""
    documents = [" ".join(sentence(draw) for _ in range(SENTENCES)) for _ in range(DOCUMENTS)]
    documents.append(" ".join(probe.text.replace(BLANK, probe.word) for probe in read_probes()))
    path.write_text("\n\n".join(documents) + "\n")


def write_codes(folder: Path, draw: random.Random) -> None:
    """Write a file for each control code, every text of which has an address."""
    folder.mkdir()
    for code in ("books", "letters"):
        texts = (" ".join(sentence(draw) for _ in range(SENTENCES)) for _ in range(DOCUMENTS))
        rows = ({"text": text, "url": f"https://{code}.example/{number}"} for number, text in enumerate(texts))
        (folder / f"{code}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_tasks(folder: Path, draw: random.Random) -> None:
    """Write a few rows for every task of the studies, in the layouts of their files."""

    def put(name: str, *lines: str) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")

    def rows(*parts: str) -> list[str]:
        """Return rows of a table: s is a sentence, p one that three rows share, n the number of the row, anything else
        a label of several."""
        table, shared = [], ""
        for number in range(ROWS):
            shared = shared if number % 3 else sentence(draw)
            values = {"p": lambda: shared, "s": lambda: sentence(draw), "n": lambda: str(number)}  # noqa: B023
            cells = [
                values[part]() if part in values else part.split("|")[number % (part.count("|") + 1)] for part in parts
            ]
            table.append("\t".join(cells))
        return table

    for split in ("train", "dev", "test"):
        put(f"SST-2/{split}.tsv", "sentence\tlabel", *rows("s", "0|1"))
        put(f"CoLA/{split}.tsv", *rows("n", "0|1", "", "s"))
        put(f"MRPC/{split}.tsv", "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", *rows("0|1", "n", "n", "s", "s"))
        put(f"RTE/{split}.tsv", "index\tsentence1\tsentence2\tlabel", *rows("n", "s", "s", "entailment|not_entailment"))
        put(f"QNLI/{split}.tsv", "index\tquestion\tsentence\tlabel", *rows("n", "s", "s", "entailment|not_entailment"))
        put(f"WNLI/{split}.tsv", "index\tsentence1\tsentence2\tlabel", *rows("n", "s", "s", "0|1"))
        pairs = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
        put(f"QQP/{split}.tsv", pairs, *rows("n", "n", "n", "s", "s", "0|1"))
        labels = "entailment|neutral|contradiction"
        put(f"MNLI/{split}.tsv", "sentence1\tsentence2\tgold_label", *rows("p", "s", labels))
        put(f"snli/{split}.tsv", "sentence1\tsentence2\tgold_label", *rows("p", "s", labels))
        put(f"STS-B/{split}.tsv", "sentence1\tsentence2\tscore", *rows("s", "s", "0.5|2.0|3.5|5.0"))
        put(f"imdb/{split}.tsv", "text\tlabel", *rows("s", "0|1"))
        for name in ("valid" if split == "dev" else split,):
            words = [f"{word} NN O {tag}" for word, tag in (("Mary", "B-PER"), ("saw", "O"), ("London", "B-LOC"))]
            put(f"conll2003/{name}.txt", *("\n".join([*words, ""]) for _ in range(ROWS)))
        for version in ("1.1", "2.0"):
            put(f"squad/{split}-v{version}.json", json.dumps(squad(version, draw)))
        options = [[sentence(draw) for _ in range(4)] for _ in range(ROWS)]
        passages = []
        for number, each in enumerate(options):
            passage: dict[str, object] = {"id": f"{split}{number}", "article": sentence(draw)}
            answers = ["ABCD"[number % 4]]
            passages.append(passage | {"questions": [sentence(draw)], "options": [each], "answers": answers})
        put(f"race/{split}.jsonl", *map(json.dumps, passages))
        endings = [
            {"ind": n, "ctx_a": sentence(draw), "ctx_b": "Then", "endings": each, "label": n % 4}
            for n, each in enumerate(options)
        ]
        put(f"hellaswag/{split}.jsonl", *map(json.dumps, endings))
        head = "video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label"
        lines = [f"v,{n},{each[0]},{each[1]},The,gold,{','.join(each)},{n % 4}" for n, each in enumerate(options)]
        put(f"swag/{'val' if split == 'dev' else split}.csv", head, *lines)
    put("sts/STSBenchmark/sts-test.csv", *rows("g", "f", "2012", "n", "0.5|2.0|3.5|5.0", "s", "s"))
    for name in ("sentences.txt", "speed.txt", "wikitext-2/test.raw"):
        put(name, *(sentence(draw) for _ in range(40)))
    put("lambada/lambada_test.jsonl", *(json.dumps({"text": sentence(draw)[:-1]}) for _ in range(ROWS)))
    put("questions.jsonl", *(json.dumps({"question": "Who saw the ship?", "answers": ["a farmer"]}) for _ in range(4)))
    cloze = {"text": "The sailor saw a red [MASK].", "answer": "ship", "kind": "syntax"}
    put("cloze.jsonl", *(json.dumps(cloze) for _ in range(4)))
    put("attribution.tsv", "code\ttext", *rows("books|letters", "s"))
    put("links.tsv", "url\ttext", *rows("https://a.example/1890|https://b.example/2004", "s"))
    words = sorted(
        {word for part in (SUBJECTS, VERBS, OBJECTS, PLACES) for text in part for word in text.lower().split()}
    )
    put("glove.txt", *(f"{word} {number % 7} {number % 5} {number % 3}" for number, word in enumerate(words)))


def squad(version: str, draw: random.Random) -> dict[str, object]:
    """Return questions in SQuAD's layout."""
    paragraphs = []
    for number in range(ROWS):
        context = sentence(draw)
        answer = context.split()[1]
        question: dict[str, object] = {
            "id": f"{version}-{number}-{draw.random()}",
            "question": "Who was it?",
            "answers": [{"text": answer, "answer_start": context.index(answer)}],
        }
        if version == "2.0":
            question |= {"is_impossible": number % 2 == 1} | ({"answers": []} if number % 2 else {})
        paragraphs.append({"context": context, "qas": [question]})
    return {"version": version, "data": [{"title": "text", "paragraphs": paragraphs}]}


def prepare(work: Path) -> None:
    """Write text, tokenizer, store and tasks, if they are not there."""
    work.mkdir(parents=True, exist_ok=True)
    if not (work / "store").is_dir():
        write_text(work / "text.txt", random.Random(0))
        bertree.train_tokenizer([work / "text.txt"], out=work / "tokenizer", vocab_size=300)
        bertree.prepare([work / "text.txt"], tokenizer=work / "tokenizer", out=work / "store")
    if not (work / "codes-store").is_dir():
        write_codes(work / "codes", random.Random(2))
        bertree.train_tokenizer([work / "codes"], out=work / "codes-tokenizer", kind="bpe", vocab_size=400)
        tokenizer, out = work / "codes-tokenizer", work / "codes-store"
        bertree.prepare([work / "codes"], tokenizer=tokenizer, out=out, control="file", given="url")
    if not (work / "tasks").is_dir():
        write_tasks(work / "tasks", random.Random(1))


def main() -> None:
    """Run the studies and print what fails."""
    parser = argument_parser(__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--only", nargs="+", default=[], metavar="STUDY")
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    prepare(options.work)
    problems = 0
    for name in options.only or bundled_studies():
        begun, line = time.perf_counter(), {"study": name}
        try:
            results = bertree.run_study(
                name,
                size=options.size,
                store=options.work / ("codes-store" if name == "ctrl-styles" else "store"),
                tasks=options.work / "tasks",
                out=options.work / "studies" / name,
                steps=options.steps,
                seeds=2 if any(step.do == "ensemble" for step in load_study(name).steps) else 1,
                jobs=options.jobs,
                device=options.device,
            )
        except bertree.UserError as error:
            print(f"{name}: NOT STARTED: {error}", flush=True)
            problems += 1
            continue
        failed = [row for row in results.rows if row["state"] not in ("done", "not computed")]
        cells = {row["cell"] for row in results.rows}
        line |= {"cells": len(cells), "steps": len(results.rows), "failed": len(failed)}
        line["seconds"] = round(time.perf_counter() - begun, 1)
        print(json.dumps(line), flush=True)
        for row in failed:
            print(f"    {row['cell']}, {row['step']}: {row['state']}: {row.get('message')}", flush=True)
        problems += len(failed)
    print(f"{problems} problems")
    raise SystemExit(problems > 0)


if __name__ == "__main__":
    main()
