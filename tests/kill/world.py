"""What the commands of the trials read: a corpus, a store, models, tasks, documents; all of it small."""

from pathlib import Path

from bertree.text import tokenizer_training
from tests.support import learnable, runs, topics

STUDY = """
title = "Rates"
question = "Which rate?"
paper = "none"
varied = "rate"
columns = [{name = "mlm", figure = "held-out.mlm_accuracy"}, {name = "sst2", figure = "sst2.accuracy"}]
steps = [
    {do = "pretrain", recipe = "bert.toml"},
    {do = "evaluate", name = "held-out", objectives = ["mlm"]},
    {do = "finetune", name = "sst2", task = "sst-2", data = "SST-2", set = ["epochs=1", "max_length=16"]},
]
cells = [{name = "low"}, {name = "high", set = {pretrain = ["optim.lr=1e-2"]}}]
sizes.tiny.seeds = 1
"""
BOOKS = Path(__file__).parents[2] / "corpus" / "books.txt"


def build(folder: Path) -> None:
    """Write all inputs that need no command."""
    folder.mkdir(parents=True)
    paragraphs = BOOKS.read_text(encoding="utf-8").split("\n\n")
    (folder / "text.txt").write_text("\n\n".join([*paragraphs[:24], paragraphs[3]]), encoding="utf-8")
    tokenizer = tokenizer_training.train(lambda: paragraphs[:24], "wordpiece", 300)
    tokenizer_training.save(tokenizer, folder / "tokenizer")
    learnable.model(folder / "base", tokenizer)
    learnable.model(folder / "start", learnable.tokenizer())
    runs.recipe("bert", folder)
    (folder / "study.toml").write_text(STUDY)
    for split, count in (("train", 64), ("dev", 24), ("test", 12)):
        rows = learnable.feelings(count, len(split))
        glue = [{"sentence": row["text"], "label": int(row["label"] == "good")} for row in rows]
        if split == "test":
            glue = [{"index": number, "sentence": row["sentence"]} for number, row in enumerate(glue)]
        learnable.write(folder / "glue" / "SST-2" / f"{split}.tsv", glue)
    learnable.write(folder / "sts" / "train.csv", topics.scored(96))
    learnable.write(folder / "sts" / "dev.csv", topics.scored(24, 1))
    texts = [str(row["text"]) for row in learnable.feelings(640, 7)]
    (folder / "lines.txt").write_text("\n".join(texts) + "\n")
    (folder / "few.txt").write_text("\n".join(texts[:80]) + "\n")
    for name, offset, count in (("old", 0, 24), ("new", 12, 24)):
        rows = [{"id": f"d{n}", "text": ". ".join(texts[9 * n : 9 * n + n % 5 + 1]), "group": f"g{n % 3}"}
                for n in range(offset, offset + count)]  # fmt: skip
        for number, row in enumerate(rows):
            if name == "new" and number % 4 == 0:
                row["text"] = f"{row['text']} It says something else now."
        learnable.write(folder / f"{name}.jsonl", rows)
    learnable.write(folder / "questions.jsonl", [{"question": texts[9 * n], "document": f"d{n}"} for n in range(6)])
