"""Control by free text: does the right address, never seen before, give held-out text a higher likelihood than others?

    python -m benchmarks.given_texts work https://books.example/1890=books.txt https://news.example/2004=agnews.tsv \
        https://wiki.example/2015=simplewiki.txt.xz https://reviews.example/2011=imdb.tsv.xz --steps 1500

A source is ADDRESS=FILE. Every document gets an address of its own: that of its source, the label of a table as a
section, and a number that occurs once. So the address of a held-out text has never been seen. The addresses follow the
code Links. Each held-out text is scored with its own address and with one of every other kind. SETTING=VALUE after
the sources changes the recipe.
"""

import json
import random
from collections import defaultdict
from itertools import islice
from pathlib import Path

import bertree
from benchmarks.common import Results, argument_parser
from bertree.text.readers import CorpusCounts, read_documents
from bertree.text.sources import find_sources, open_source

HELD_OUT = 50  # texts of each kind
CHARACTERS = 1200  # of a document; longer ones are cut there


def read_source(address: str, file: str, most: int) -> dict[str, list[str]]:
    """Return the texts of a source, by the address that they begin with."""
    (source,) = find_sources([file], None)
    labelled = source.format != "text"
    texts: defaultdict[str, list[str]] = defaultdict(list)
    with open_source(source) as (stream, _):
        columns = {"control": "label"} if labelled else {}
        documents = read_documents(source, stream, "text", False, CorpusCounts(), columns)
        for document in islice((each for each in documents if len(each.text) > 150), 8 * most):
            section = f"/section{document.values[0]}" if labelled else ""
            if len(texts[address + section]) < most:
                texts[address + section].append(" ".join(document.text.split())[:CHARACTERS])
    return texts


def main() -> None:
    """Train a model and print how often the right address wins."""
    parser = argument_parser(__doc__)
    parser.add_argument("work", type=Path, help="folder for the corpus and the run")
    parser.add_argument("sources", nargs="+", metavar="ADDRESS=FILE|SETTING=VALUE")
    parser.add_argument("--documents", type=int, default=1500, help="of each kind of address, at most")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--recipe", default="ctrl-tiny")
    options = parser.parse_args()
    sources = [source.rpartition("=") for source in options.sources if "://" in source]
    changes = [source for source in options.sources if "://" not in source]
    read = [read_source(address, file, options.documents) for address, _, file in sources]
    kinds = {address: texts for texts_of in read for address, texts in texts_of.items()}
    numbers = iter(random.Random(0).sample(range(100_000, 1_000_000), 100_000))
    rows = {kind: [(f"{kind}/{next(numbers)}", text) for text in texts] for kind, texts in kinds.items()}
    rows = {kind: each for kind, each in rows.items() if len(each) > 2 * HELD_OUT}  # others have too few to learn from
    options.work.mkdir(parents=True, exist_ok=True)
    corpus, store, run = options.work / "Links.jsonl", options.work / "store", options.work / "run"
    train = [{"text": text, "url": url} for each in rows.values() for url, text in each[HELD_OUT:]]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in train))
    tokenizer = options.work / "tokenizer"
    if not (store / "store.json").is_file():
        bertree.train_tokenizer(corpus, tokenizer, kind="bpe", vocab_size=4000)
        bertree.prepare(corpus, tokenizer, store, control="file", given="url", workers=1)
    settings = [f"phases.0.steps={options.steps}", "phases.0.max_length=128", "phases.0.batch_tokens=2048"]
    settings += ["data.held_out_share=0.02", *changes]
    bertree.pretrain(options.recipe, store=store, out=run, resume=run.exists(), overrides=settings)
    model = bertree.load(run)
    wins = first = total = 0
    own = defaultdict(list)
    for kind, each in rows.items():
        for url, text in each[:HELD_OUT]:
            others = [f"{other}/{next(numbers)}" for other in rows if other != kind]
            (ranked,) = model.attribute(text[:400], given=[url, *others])
            loss = {score.given: score.loss for score in ranked}
            beaten = sum(loss[url] < loss[other] for other in others)
            wins, first, total = wins + beaten, first + (beaten == len(others)), total + 1
            own[kind].append(beaten / len(others))
    results = Results("given-texts", options.out, note=f"{model.architecture.describe()}; {len(train)} documents")
    for kind, shares in own.items():
        results.add(kind, against_another_percent=round(100 * sum(shares) / len(shares), 1), chance_percent=50)
    pairs = total * (len(rows) - 1)
    results.add(
        f"{len(rows)} kinds of address, never seen",
        against_another_percent=round(100 * wins / pairs, 1),
        best_of_all_percent=round(100 * first / total, 1),
        chance_of_best_percent=round(100 / len(rows), 1),
        texts=total,
    )


if __name__ == "__main__":
    main()
