"""Control codes: does a model name the source of held-out texts, and do its texts differ by code?

    python -m benchmarks.control_corpus ... --out sources             # at least four sources, and held-out.tsv
    bertree prepare sources/train --control folder --tokenizer TOKENIZER --out store
    bertree pretrain ctrl-tiny --store store --out ctrl
    python -m benchmarks.attribution ctrl/model sources/held-out.tsv --characters 250 --prompt "The old man"

The table has the columns code and text. For each source it prints how many texts are attributed to it by the likelihood
that each code gives them, then one text for each code from the same prompt and seed.
"""

import csv
from collections import Counter
from pathlib import Path

from benchmarks.common import Results, argument_parser, table
from bertree import load


def main() -> None:
    """Print the table and the texts."""
    parser = argument_parser(__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("texts", type=Path, help="table with the columns code and text")
    parser.add_argument("--characters", type=int, default=250, help="texts are cut there")
    parser.add_argument("--every", type=int, default=1, help="take every n-th text")
    parser.add_argument("--prompt", default="The old man")
    parser.add_argument("--tokens", type=int, default=40)
    options = parser.parse_args()
    with options.texts.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[:: options.every]
    model = load(options.model)
    named: Counter[tuple[str, str]] = Counter()
    attributions = model.attribute([row["text"][: options.characters] for row in rows])
    for row, attribution in zip(rows, attributions, strict=True):
        named[row["code"], attribution.codes[0].code] += 1
    codes = list(model.controls)
    confusion = [[code, *(named[code, other] for other in codes)] for code in codes]
    print(f"lines: sources; columns: codes by likelihood\n\n{table(['source', *codes], confusion)}\n")
    for code in codes:
        (continuation,) = model.generate(
            options.prompt, control=code, tokens=options.tokens, temperature=0.7, top_p=0.9, penalty=1.2, seed=1
        )
        print(f"{code}: {' '.join(f'{continuation.prompt}{continuation.text}'.split())}")
    correct = 100 * sum(named[code, code] for code in codes) / len(rows)
    results = Results(
        "attribution", options.out, note=f"{model.architecture.describe()}, {options.characters} characters"
    )
    results.add(options.model.parent.name, accuracy_percent=correct, chance_percent=100 / len(codes), texts=len(rows))


if __name__ == "__main__":
    main()
