"""A tag for each word: named entities (CoNLL-2003) and the user's own tags, such as parts of speech.

A word is labeled at its first sub-word, as in the BERT paper, or at its last. Entity tags are converted to IOB2 when
they are read, whatever scheme the file has: it has the fewest labels and always marks the beginning of an entity. A
sentence that is too long is read in overlapping windows, so every word gets a tag.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import eq
from pathlib import Path
from typing import Any, Self

import numpy as np

from bertree.config.settings import setting
from bertree.console import note
from bertree.errors import UserError, listed, suggest
from bertree.files.formats import Json
from bertree.tasks.files import WORDS, find_splits
from bertree.tasks.metrics import Statistic, accuracy, ratio_statistic, softmax
from bertree.tasks.tagging import sentences
from bertree.tasks.tagging.entities import (
    PLAIN,
    SHAPE,
    entities,
    entity_statistics,
    join_tag,
    scheme_of,
    score_entities,
    split_tag,
    to_iob2,
)
from bertree.tasks.tagging.sentences import Sentence, SentenceRecord, windows
from bertree.tasks.tagging.sentences import words as words_of
from bertree.tasks.task import Logits, Splits, Task, Truncation, Unit, check_label_count
from bertree.text.cleaning import replace_surrogates
from bertree.text.framing import Frame, tokenize_distinct
from bertree.text.records import texts_field
from bertree.text.tokenizer import Tokenizer

ENTITIES = "entities"
SCHEMES = ("auto", ENTITIES, PLAIN)
SUBWORDS = ("first", "last")
FOLDERS = ("conll2003", "conll03", "conll")  # other names of a folder of `ner`
LANGUAGES = ("eng", "deu", "esp", "ned")  # prefixes of CoNLL files: eng.train, eng.testa, eng.testb
CONLL = {"train": "train", "testa": "dev", "testb": "test"}
SPLITS = WORDS | CONLL
SPLITS |= {f"{language}.{word}": split for language in LANGUAGES for word, split in CONLL.items()}


@dataclass(frozen=True)
class TaggingTask(Task[Sentence]):
    """`ner` (CoNLL-2003; entities only) or `tagging` (the user's own data)."""

    max_length: int = 256
    crf: bool = setting(False, "a CRF decodes the best sequence of tags instead of the best tag of each word")
    scheme: str = setting("auto", "entities or plain; auto: by the labels")
    subword: str = setting("first", "the piece of a word that is labeled; last for models that read from left to right")
    text: str | None = None  # the words: name of a field (words) or number of a column (0)
    label: str | None = None  # the tags: name of a field (tags) or number of a column (-1)

    head = "token"
    kind = "tagging"
    layout = ("subword",)

    def __post_init__(self) -> None:
        if self.scheme not in SCHEMES:
            raise UserError(f"scheme '{self.scheme}': unknown; {suggest(self.scheme, SCHEMES)}")
        if self.subword not in SUBWORDS:
            raise UserError(f"subword '{self.subword}': unknown; {suggest(self.subword, SUBWORDS)}")

    def for_direction(self, direction: str) -> Self:
        return replace(self, subword="last") if direction == "forward" else self

    @property
    def metric(self) -> str:  # type: ignore[override]  # depends on the tags
        """Entity F1, or accuracy for plain tags."""
        return "f1" if self.has_entity_tags else "accuracy"

    @property
    def has_entity_tags(self) -> bool:
        """True if the tags are of entities."""
        return self.scheme == ENTITIES or (self.scheme == "auto" and all(map(SHAPE.fullmatch, self.labels)))

    def splits(self, data: Path) -> Splits:
        names = (self.name, *FOLDERS) if self.name == "ner" else (self.name,)
        return find_splits(data, names, words=SPLITS, kinds=(*sentences.COLUMNS, *sentences.TABLES, ""))

    def read(self, paths: Sequence[Path]) -> list[Sentence]:
        records = [record for path in paths for record in self._read_file(path)]
        tagged = [record.tags for record in records if record.tags is not None]
        scheme = self._scheme(records, tagged)
        converted = tagged if scheme == PLAIN else [to_iob2(tags, scheme) for tags in tagged]
        self._check(records, converted)
        self._note_conversion(scheme, tagged, converted)
        remaining = (tuple(tags) for tags in converted)
        return [
            Sentence(tuple(record.words), None if record.tags is None else next(remaining), file=str(record.path))
            for record in records
        ]

    def _read_file(self, path: Path) -> list[SentenceRecord]:
        records = list(sentences.read(path, self.text, self.label))
        if not records:
            raise UserError(f"{path}: holds no sentence")
        return records

    def _scheme(self, records: Sequence[SentenceRecord], tagged: Sequence[Sequence[str]]) -> str:
        """Return the scheme of a file's tags; where entities are expected, every tag must be one of an entity."""
        if self.scheme == PLAIN or (self.labels and not self.has_entity_tags):
            return PLAIN
        scheme = scheme_of(tagged)
        if scheme == PLAIN and (self.labels or self.scheme == ENTITIES or self.name == "ner"):
            for sentence in records:
                for at, tag in enumerate(sentence.tags or ()):
                    if not SHAPE.fullmatch(tag):
                        hint = f"known: {', '.join(self.labels)}" if self.labels else "use the task 'tagging'"
                        raise UserError(
                            f"{sentence.word_location(at)}: tag '{tag}' is not of an entity (O, B-, I-); {hint}"
                        )
            raise UserError(f"{records[0].path}: tags of IOBES (E-, S-) and BILOU (L-, U-) are mixed; use one scheme")
        return scheme

    def _check(self, records: Sequence[SentenceRecord], tagged: Sequence[Sequence[str]]) -> None:
        """Raise an error about a tag that the head does not have."""
        if not self.labels:
            return
        labels = set(self.labels)
        for sentence, tags in zip((s for s in records if s.tags is not None), tagged, strict=True):
            if not labels.issuperset(tags):
                at = next(at for at, tag in enumerate(tags) if tag not in labels)
                assert sentence.tags is not None
                raise UserError(f"{sentence.word_location(at)}: {self._unknown(sentence.tags[at])}")

    def _unknown(self, tag: str) -> str:
        return f"tag '{tag}' is not in the training data; known: {', '.join(self.labels)}"

    def _note_conversion(self, scheme: str, before: Sequence[Sequence[str]], after: Sequence[Sequence[str]]) -> None:
        # Without the file name, so that the note is shown once for all splits.
        changed = sum(a != b for old, new in zip(before, after, strict=True) for a, b in zip(old, new, strict=True))
        if changed and scheme == "iob2":
            line = f"{changed} I- tags that begin an entity are read as B-"
        elif changed:
            line = f"the tags are {scheme.upper()}; they are read as IOB2"
        else:
            return
        note(line)

    def read_unlabeled(self, path: Path) -> Iterable[Sentence] | None:
        """Return the words of a file in columns, whether it has tags or not."""
        text, label = (name if name and sentences.NUMBER.fullmatch(name) else None for name in (self.text, self.label))
        numbers = int(text or 0), int(label or -1)
        if not sentences.holds_columns(path, *numbers, self._is_tag, {self._words_field, "text"}):
            return None
        return (Sentence(tuple(record.words)) for record in sentences.read(path, text, label))

    @property
    def _words_field(self) -> str:
        """The name of the field with the words in tables and objects."""
        return self.text if self.text is not None and not sentences.NUMBER.fullmatch(self.text) else "words"

    def _is_tag(self, tag: str) -> bool:
        """True if a tag is a label of the task, or has another position in an entity of a known type."""
        if not self.labels:
            return SHAPE.fullmatch(tag) is not None
        if not self.has_entity_tags:
            return tag in self.labels
        kinds = {split_tag(label)[1] for label in self.labels if label != "O"}
        return tag == "O" or (SHAPE.fullmatch(tag) is not None and split_tag(tag)[1] in kinds)

    def parse(self, record: str | Json, where: str = "input") -> Sentence:
        if isinstance(record, dict):
            name = self._words_field
            if isinstance(record.get(name), str):  # a cell of a table of text
                return Sentence(tuple(sentences.split_words(replace_surrogates(record[name]))))
            if name in record:
                return Sentence(tuple(texts_field(record, name, where)))
            text = record.get("text")
            if not isinstance(text, str):
                raise UserError(
                    f"{where}: needs '{name}', a list of texts, or 'text', a text; there is: {listed(record)}"
                )
            record = text
        text = replace_surrogates(record)
        offsets = tuple(words_of(text))
        return Sentence(tuple(text[start:end] for start, end in offsets), None, text, offsets)

    def labels_in(self, examples: Sequence[Sentence]) -> tuple[str, ...]:
        """Return O, then B- and I- of each type; plain tags in alphabetical order."""
        tags = {tag for example in examples for tag in example.tags or ()}
        source = examples[0].file or self.name
        if not tags:
            named = self.label or "tags"
            raise UserError(f"{source}: the sentences have no tags; name their column with `label` (now '{named}')")
        if self.scheme == PLAIN or not all(map(SHAPE.fullmatch, tags)):
            labels: tuple[str, ...] = tuple(sorted(tags))
        else:
            kinds = sorted({split_tag(tag)[1] for tag in tags if tag != "O"})
            labels = ("O", *(join_tag(position, kind) for kind in kinds for position in "BI"))
        check_label_count(labels, source)
        return labels

    def with_labels(self, labels: Sequence[str]) -> Self:
        labeled = replace(self, labels=tuple(labels))
        return replace(labeled, scheme=ENTITIES if labeled.has_entity_tags else PLAIN)

    def units(
        self, examples: Sequence[Sentence], tokenizer: Tokenizer, max_length: int
    ) -> tuple[list[Unit], Truncation]:
        frame = Frame(tokenizer, pair=False)
        room = frame.room(max_length)
        # With a space in front: words of a byte-level BPE begin with one inside a sentence.
        pieces = tokenize_distinct((f" {word}" for example in examples for word in example.words), tokenizer)
        placeholder = next((i for kind in ("unk", "mask", "sep") if (i := tokenizer.id_of(kind)) is not None), 0)
        classes = {label: number for number, label in enumerate(self.labels)}
        units: list[Unit] = []
        cut_examples = cut_tokens = 0
        for number, example in enumerate(examples):
            ids = [pieces[f" {word}"] or [placeholder] for word in example.words]
            dropped = sum(max(0, len(word) - room) for word in ids)
            if dropped:
                ids = [word[:room] for word in ids]
                cut_examples, cut_tokens = cut_examples + 1, cut_tokens + dropped
            if unknown := next((tag for tag in example.tags or () if tag not in classes), None):
                raise UserError(self._unknown(unknown))
            answers = None if example.tags is None else [classes[tag] for tag in example.tags]
            units += self._windows(number, ids, answers, frame, room)
        return units, Truncation(cut_examples, cut_tokens)

    def _windows(
        self, number: int, ids: list[list[int]], answers: list[int] | None, frame: Frame, room: int
    ) -> list[Unit]:
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        starts = np.concatenate([[0], lengths.cumsum()])
        units = []
        for start, end, first, last in windows(lengths, room):
            positions = starts[first:last] if self.subword == "first" else starts[first + 1 : last + 1] - 1
            chosen = (positions - starts[start] + frame.start()).tolist()
            answer = None if answers is None else answers[first:last]
            units.append(Unit(number, (frame.wrap([i for word in ids[start:end] for i in word]),), chosen, answer))
        return units

    def predict(self, examples: Sequence[Sentence], units: Sequence[Unit], logits: Sequence[Logits]) -> list[Json]:
        rows: list[list[Logits]] = [[] for _ in examples]
        for unit, unit_rows in zip(units, logits, strict=True):
            rows[unit.example].append(unit_rows)
        return [self._line(example, of_example) for example, of_example in zip(examples, rows, strict=True)]

    def _line(self, example: Sentence, rows: list[Logits]) -> Json:
        """Return the prediction for a sentence. A CRF decodes all words together and has no score for a word: None."""
        scores = np.concatenate(rows).astype(np.float64) if rows else np.zeros((0, max(self.classes, 1)))
        assert len(scores) == len(example.words), "a row of scores for each word"
        best = scores.argmax(1)
        probabilities = softmax(scores).max(1)
        predicted = [self.labels[i] for i in best]
        text, offsets = example.with_offsets()
        line: dict[str, Any] = {"text": text, "words": list(example.words)}
        if example.tags is not None:
            line["gold"] = list(example.tags)
        line["predicted"] = predicted
        if self.has_entity_tags:
            line["entities"] = [
                {
                    "type": kind,
                    "text": text[offsets[start][0] : offsets[end - 1][1]],
                    "start": offsets[start][0],
                    "end": offsets[end - 1][1],
                    "score": None if self.crf else float(probabilities[start:end].mean()),
                }
                for kind, start, end in entities(predicted)
            ]
        line["score"] = None if self.crf or not predicted else float(probabilities.mean())
        return line

    def error(self, line: Json) -> float:
        """Return the share of wrong words."""
        return 1 - accuracy(line["gold"], line["predicted"]) if line["predicted"] else 0.0

    def confidence(self, line: Json) -> None:
        """A sentence has many tags, each with its own confidence, and none itself."""

    def prediction_text(self, line: Json) -> str:
        """Return the text and, below it, its entities; for plain tags, each word with its tag."""
        if "entities" not in line:
            return " ".join(f"{word}/{tag}" for word, tag in zip(line["words"], line["predicted"], strict=True))
        lines = [_entity_text(entity) for entity in line["entities"]]
        return "\n".join([str(line["text"]), *(lines or ["  no entity"])])

    def score(self, examples: Sequence[Sentence], predictions: Sequence[Json]) -> dict[str, float]:
        gold = [list(example.tags or ()) for example in examples]
        predicted = [p["predicted"] if e.tags is not None else [] for e, p in zip(examples, predictions, strict=True)]
        right = {"accuracy": accuracy([*chain.from_iterable(gold)], [*chain.from_iterable(predicted)])}
        if not self.has_entity_tags:
            return right
        total, kinds = score_entities(gold, predicted)
        by_type = {f"f1-{kind}": scores.f1 for kind, scores in kinds.items()}
        return {**total._asdict(), **right, **by_type}

    def statistics(self, examples: Sequence[Sentence], predictions: Sequence[Json]) -> dict[str, Statistic]:
        """Return the scores; sentences are drawn, because the words and entities of one are right or wrong together."""
        lines = zip(examples, predictions, strict=True)
        pairs = [(example.tags, line["predicted"]) for example, line in lines if example.tags is not None]
        right = [sum(map(eq, gold, predicted)) for gold, predicted in pairs]
        words = {"accuracy": ratio_statistic(right, [len(gold) for gold, _ in pairs])}
        return words | (entity_statistics(pairs) if self.has_entity_tags else {})

    def settings(self) -> Json:
        columns = {"text": self.text, "label": self.label}
        named = {name: column for name, column in columns.items() if column is not None}
        layout = {"subword": self.subword} if self.subword != "first" else {}
        return {"crf": self.crf, "scheme": self.scheme} | named | layout


def _entity_text(entity: Json) -> str:
    score = "" if entity["score"] is None else f"\t{entity['score']:.3f}"
    return f"  {entity['type']}\t{entity['text']}\t{entity['start']}-{entity['end']}{score}"
