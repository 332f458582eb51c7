"""Write what later versions of bertree must read: a model, a token store, an index and an unfinished run, all tiny.

    python -m tests.golden.make_release tests/golden/release-0.2.0

tests/test_compatibility.py reads them. A released folder is never written again; a new format gets a new folder.
"""

import json
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import bertree
from bertree.train.metrics_log import TrainingEvent

LINES = [f"The {name} sails to the {place}." for name in ("ship", "boat") for place in ("harbour", "island")]
SMALL = {"layers": 1, "width": 16, "heads": 2, "ffn_width": 32, "max_positions": 16}


def main(out: Path) -> None:
    out.mkdir(parents=True)
    os.chdir(out)
    Path("corpus").mkdir()
    Path("corpus/ships.txt").write_text("\n".join([*LINES, "\n"]) * 40)
    bertree.train_tokenizer("corpus", "tokenizer", vocab_size=60)
    bertree.prepare("corpus", "tokenizer", "store", workers=1)
    phase = {"steps": 4, "max_length": 16, "batch_tokens": 64}
    settings: dict[str, Any] = {"phases": [phase], "model": {"preset": "bert-tiny", **SMALL}}
    settings["run"] = {"device": "cpu", "save_every": 2, "keep": 1, "eval_every": 4, "eval_tokens": 64}
    settings["schedule"] = {"warmup": 1}

    def stop(event: TrainingEvent) -> None:
        if event.step == 2:
            raise EOFError

    bertree.pretrain("bert-base-tiny", store="store", out="finished", **settings)
    with suppress(EOFError):
        bertree.pretrain("bert-base-tiny", store="store", out="stopped", on_step=stop, **settings)
    vector = bertree.load("finished").embed("The ship sails.")[0].tolist()
    Path("vector.json").write_text(json.dumps([round(number, 6) for number in vector]) + "\n")
    documents = [{"id": name, "text": f"The {name} sails."} for name in ("ship", "boat")]
    bertree.Index.build("finished/model", documents, "index").close()
    for name in ("corpus", "tokenizer", "finished/checkpoints"):
        shutil.rmtree(name)
    for page in Path().glob("*/report.html"):
        page.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
