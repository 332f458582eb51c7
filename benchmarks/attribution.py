"""Control codes: does a model name the source of held-out texts, and do its texts differ by code?

    python -m benchmarks.control_corpus ... --out sources             # at least four sources, and held-out.tsv
    bertree prepare sources/train --control folder --tokenizer TOKENIZER --out store
    bertree pretrain ctrl-tiny --store store --out ctrl
    python -m benchmarks.attribution ctrl/model sources/held-out.tsv --characters 250 --prompt "The old man"

The table has the columns code and text. For each source it prints how many texts are attributed to it by the likelihood
that each code gives them, then one text for each code from the same prompt and seed.
"""

import argparse
import csv
from collections import Counter
from pathlib import Path

from benchmarks.common import environment, table
from bertree import load


def main() -> None:
    """Print the table and the texts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("texts", type=Path, help="table with the columns code and text")
    parser.add_argument("--characters", type=int, default=250, help="texts are cut there")
    parser.add_argument("--every", type=int, default=1, help="take every n-th text")
    parser.add_argument("--prompt", default="The old man")
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with given.texts.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[:: given.every]
    model = load(given.model)
    named: Counter[tuple[str, str]] = Counter()
    found = model.attribute([row["text"][: given.characters] for row in rows])
    for row, one in zip(rows, found, strict=True):
        named[row["code"], one.codes[0].code] += 1
    codes = list(model.controls)
    lines = [[code, *(named[code, other] for other in codes)] for code in codes]
    right = sum(named[code, code] for code in codes)
    parts = [
        f"{environment()}; {model.architecture.describe()}; {len(rows)} texts of up to {given.characters} characters",
        f"Named rightly: {right / len(rows):.1%} (chance: {1 / len(codes):.0%}). Rows: sources; columns: names.",
        table(["source", *codes], lines),
        f'From the prompt "{given.prompt}", temperature 0.7, top-p 0.9, penalty 1.2, the same seed:',
    ]
    for code in codes:
        (made,) = model.generate(
            given.prompt, control=code, tokens=given.tokens, temperature=0.7, top_p=0.9, penalty=1.2, seed=1
        )
        parts.append(f"- **{code}**: {' '.join(f'{made.prompt}{made.text}'.split())}")
    text = "\n\n".join(parts)
    print(text)
    if given.out:
        given.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
