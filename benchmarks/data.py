"""Both halves of the data path in one run: text -> store (`data_prepare.py`), store -> batches (`data_stream.py`).

    python benchmarks/data.py              # some minutes; preparing 500 MB of text is most of it
    python benchmarks/data.py --quick      # without the 500 MB

The stream is measured on one core, so each half is a process of its own.
"""

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="memory at 10 MB only")
    sizes = ["10"] if parser.parse_args().quick else ["10", "500"]
    for script, options in (("data_prepare.py", ["--megabytes", *sizes]), ("data_stream.py", [])):
        print(f"## {script} {' '.join(options)}\n", flush=True)
        subprocess.run([sys.executable, HERE / script, *options], check=True)
        print(flush=True)


if __name__ == "__main__":
    main()
