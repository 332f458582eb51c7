"""Held-out loss of several runs over time, as one .svg, or over time and tokens as one .html.

python -m benchmarks.curves curves.svg "pre-norm=run-a" "post-norm=run-b"
"""

import argparse
from pathlib import Path

from bertree.report.run import held_out_svg, runs_page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", nargs="+", metavar="NAME=FOLDER", help="a run's folder, and how it is called")
    parser.add_argument("--over", default="seconds", choices=["seconds", "tokens", "step"])
    parser.add_argument("--title", default="Held-out MLM loss")
    given = parser.parse_args()
    runs = {name: Path(folder) for name, _, folder in (run.partition("=") for run in given.runs)}
    if given.out.suffix == ".html":
        given.out.write_text(runs_page(runs, field="mlm"))
    else:
        given.out.write_text(held_out_svg(runs, over=given.over, field="mlm", title=given.title))


if __name__ == "__main__":
    main()
