"""The word index: BM25, the terms of several languages, hybrid search, and both parts in step."""

import json
import math
import random
import sqlite3
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bertree.errors import UserError
from bertree.search import writer as index_writer
from bertree.search.database import DATABASE
from bertree.search.index import Index
from bertree.search.index_state import seal
from bertree.search.ranking import _best_words
from bertree.search.words.bm25 import WordIndex
from bertree.search.words.terms import STEMMED, analyzer_for, stop_words
from bertree.search.words.word_table import WordTable, prefixes_of, write_words
from tests.support.killing import contents
from tests.support.search_samples import SHIPS, ids
from tests.support.standin import Words

NOBODY = np.empty(0, np.int64)


def sentences(count: int) -> list[str]:
    chance = random.Random(1)
    return [
        " ".join(f"w{int(chance.paretovariate(0.7)) % 900}" for _ in range(chance.randint(0, 60))) for _ in range(count)
    ]


def lucene(documents: list[list[str]], query: list[str]) -> list[float]:
    """BM25 by its formula, a document at a time."""
    mean = sum(map(len, documents)) / len(documents)
    holding = {term: sum(term in document for document in documents) for term in query}
    scores = []
    for document in documents:
        counts, score = Counter(document), 0.0
        for term in query:
            n = holding[term]
            norm = 1.2 * (1 - 0.75 + 0.75 * len(document) / mean)
            score += math.log(1 + (len(documents) - n + 0.5) / (n + 0.5)) * counts[term] / (counts[term] + norm)
        scores.append(score)
    return scores


def test_scores_are_bm25_of_lucene_also_of_merged_tables_and_without_the_dead(tmp_path: Path) -> None:
    texts, analyzer = sentences(1000), analyzer_for("en")
    tables = [WordTable.of_texts(texts[a:b], analyzer) for a, b in ((0, 400), (400, 401), (401, 1000))]
    parts = [write_words(tmp_path, "words-1", tables[:2]), write_words(tmp_path, "words-2", tables[2:])]
    query = ["w1", "w3", "w3", "w250", "nowhere"]
    documents = [text.split() for text in texts]
    index = WordIndex(tmp_path, parts, (401, 599), NOBODY)
    assert index.scores(query) == pytest.approx(np.array(lucene(documents, query)), abs=1e-5)
    dead = np.array([3, 400, 999])
    alive = np.setdiff1d(np.arange(1000), dead)
    expected = np.array(lucene([documents[n] for n in alive], query))
    assert WordIndex(tmp_path, parts, (401, 599), dead).scores(query)[alive] == pytest.approx(expected, abs=1e-5)
    keep = np.isin(np.arange(1000), alive)
    kept = [WordTable.read(tmp_path, parts[0]).only(keep[:401]), WordTable.read(tmp_path, parts[1]).only(keep[401:])]
    compacted = WordIndex(tmp_path, [write_words(tmp_path, "words-3", kept)], (997,), NOBODY)
    assert compacted.scores(query) == pytest.approx(expected, abs=1e-5)


def test_every_term_is_found_also_behind_the_same_first_letters() -> None:
    words = ["abc", "abcdefg", "abcdefgh", "abcdefghi", "abcdefghij", "abcdefgz", "zebra", "ärger", "海海海海"]
    analyzer = SimpleNamespace(terms=str.split)
    table = WordTable.of_texts([word for word in words for _ in range(2)], analyzer)
    absent = ["", "ab", "abcdefghh", "zebras", "~", "海海海海海"]
    terms = [word.encode() for word in (*words, *absent)]
    rows = [table.rows[start:end].tolist() for start, end in table.spans(terms, prefixes_of(terms))]
    assert rows == [[2 * number, 2 * number + 1] for number in range(len(words))] + [[]] * len(absent)


@pytest.mark.parametrize("k", [1, 10, 100, 5000])
def test_the_best_by_words_are_those_of_a_full_sort(k: int) -> None:
    draw = np.random.default_rng(k)
    for share in (0.0, 0.01, 0.3, 1.0):
        scores = np.round(draw.exponential(size=3000), 2).astype(np.float32) * (draw.random(3000) < share)
        files = SimpleNamespace(words=SimpleNamespace(scores=lambda _, scores=scores: scores))
        expected = [n for n in np.argsort(-scores, kind="stable")[:k].tolist() if scores[n] > 0]
        (positions, _), _ = _best_words(files, [], k, None)
        assert positions.tolist() == expected, share


def test_scores_equal_those_of_bm25s(tmp_path: Path) -> None:
    bm25s = pytest.importorskip("bm25s")
    texts, analyzer = sentences(1000), analyzer_for("en")
    peer = bm25s.BM25(method="lucene", k1=1.2, b=0.75)
    peer.index([analyzer.terms(text) for text in texts], show_progress=False)
    part = write_words(tmp_path, "words-1", [WordTable.of_texts(texts, analyzer)])
    for query in (["w1", "w2"], ["w40", "w40", "w7"]):
        assert WordIndex(tmp_path, [part], (1000,), NOBODY).scores(query) == pytest.approx(
            peer.get_scores(query), abs=1e-4
        )


FORMS = {
    "en": ["whale whales whaling", "city cities", "agree agreed agreeing"],
    "de": ["Kind Kinder Kindern Kindes", "Kirche Kirchen", "Auto Autos"],
    "fr": ["cheval chevaux", "grand grande grandes", "bateau bateaux", "l'homme homme"],
    "es": ["libro libros", "canción canciones", "luz luces"],
    "it": ["libro libri", "amica amiche", "dell'uomo uomo"],
    "pt": ["nação nações", "animal animais", "casa casas"],
    "nl": ["boot boten", "man mannen", "mogelijkheid mogelijkheden"],
    "sv": ["flicka flickor flickan flickorna", "hund hundar hundarna"],
    "da": ["bil bilen biler bilerne", "hus huset huse"],
    "no": ["bil bilen biler bilene", "bok boka"],
    "fi": ["talo talossa talon talot"],
    "ru": ["книга книги книгу книгами", "новый новая новое"],
}


def test_twelve_languages_have_stop_words_and_forms_of_a_word_are_one_term() -> None:
    assert set(FORMS) == set(STEMMED)
    for language, families in FORMS.items():
        analyzer = analyzer_for(language)
        terms = [set(analyzer.terms(family)) for family in families]
        assert [len(term) for term in terms] == [1] * len(families), (language, terms)
        assert len(set.union(*terms)) == len(families), language
        assert analyzer.terms(" ".join(stop_words(language))) == []
    assert analyzer_for("pl").terms("To są Koty") == ["to", "sa", "koty"], "no list, no endings"
    assert analyzer_for("zh").terms("東京都 2024") == ["東京", "京都", "2024"]


def test_a_hit_shows_what_found_it(index: Index) -> None:
    hit = index.search("Two brigs at noon", k=1)[0]
    assert (hit.document, hit.word_rank, hit.vector_rank) == ("c", 1, 1)
    assert [hit.text[a:b] for a, b in hit.highlights] == ["Two", "brigs"]
    assert {hit.word_rank for hit in index.search("lantern", k=4)} == {1, None}


def test_words_need_no_model(tmp_path: Path, index: Index) -> None:
    unloaded = Index.open(index.path)
    assert ids(unloaded, "brig lanterns", mode="words") == ["b", "a", "c"]
    assert ids(unloaded, "brig", mode="words", where={"year": 1902}) == ["c"]
    assert ids(unloaded, "nothing alike", mode="words") == ["d"]
    with pytest.raises(UserError, match="opened without its model"):
        unloaded.search("brig")


def test_a_query_that_shares_no_word_is_answered_by_vectors(index: Index) -> None:
    assert ids(index, "zzz ?") == ids(index, "zzz ?", mode="vectors")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"question": "the ?", "mode": "words"}, "'the \\?': has only stop words or none"),
        ({"question": "tea", "mode": "word"}, "mode 'word': is unknown; did you mean 'words'"),
    ],
)
def test_bad_queries_are_refused_in_one_line(options: dict, line: str, index: Index) -> None:
    with pytest.raises(UserError, match=line):
        index.search(**options)


@pytest.mark.parametrize(
    ("language", "advice"),
    [("klingon", "with stop words: en, de"), ("eng", "mean 'en'"), ("German", "mean 'de'"), ("xx", "with stop words")],
)
def test_an_unknown_language_is_refused_with_a_code_that_is_near(tmp_path: Path, language: str, advice: str) -> None:
    with pytest.raises(UserError, match=f"language '{language}': is no two-letter code of ISO 639-1; .*{advice}") as at:
        Index.build(Words(), SHIPS, tmp_path / "index", language=language)
    assert len(str(at.value)) < 150
    assert not (tmp_path / "index").exists()


def test_the_hybrid_score_is_the_sum_of_its_definition(index: Index) -> None:
    hits = index.search("brig at anchor", k=4)
    weight, best = index.state.word_weight, max(hit.word_score or 0 for hit in hits)
    cosines = np.array([hit.cosine for hit in hits])
    assert len(hits) == len(index), "mean and standard deviation are those of all passages"
    expected = [
        weight * (hit.word_score or 0) / best + (1 - weight) * (hit.cosine - cosines.mean()) / (5 * cosines.std())
        for hit in hits
    ]
    assert [hit.score for hit in hits] == pytest.approx(expected, abs=1e-5)


def old_format(folder: Path) -> None:
    """Turn an index into one that was made before there were words."""
    with sqlite3.connect(folder / DATABASE) as base:
        state = json.loads(base.execute("SELECT value FROM state").fetchone()[0])
        for name in ("words", "word_version", "word_weight"):
            del state[name]
        base.execute("UPDATE state SET value = ?", (json.dumps(state | {"format": 1}),))
        base.executescript("ALTER TABLE chunks DROP COLUMN checksum; ALTER TABLE documents DROP COLUMN checksum")
    base.close()
    for path in folder.glob("words-*"):
        path.unlink()


def test_an_old_index_is_searched_by_vectors_until_it_is_upgraded(index: Index) -> None:
    expected = ids(index, "brig", mode="words")
    index.close()
    old_format(index.path)
    with Index.open(index.path, Words()) as old:
        assert [hit.word_score for hit in old.search("brig", k=1)] == [None]
        with pytest.raises(UserError, match="has no word index; make one with `bertree index upgrade`"):
            old.search("brig", mode="hybrid")
        old.add({"id": "e", "text": "An old brigantine."})
        old.upgrade()
        assert ids(old, "brig", mode="words") == expected
        assert ids(old, "brigantine", mode="words") == ["e"]
        old.add({"id": "f", "text": "A brig, a brig."})
        assert ids(old, "brig", mode="words")[0] == "f"
    contents(index.path, Words())


def test_add_remove_and_compaction_keep_both_parts_in_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_writer, "COMMIT_ROWS", 7)
    model = Words(16)
    with Index.build(
        model, [{"id": f"d{n}", "text": text} for n, text in enumerate(sentences(60)) if text], tmp_path / "i"
    ) as index:
        index.add([{"id": f"d{n}", "text": f"another w{n}"} for n in range(20)])
        index.remove([f"d{n}" for n in range(30, 60)])
        assert index.state.dead
        contents(index.path, model)
        monkeypatch.setattr(index_writer, "max", lambda *_: 0, raising=False)  # compact at once
        index.remove("d1")
        assert not index.state.dead
    contents(tmp_path / "i", model)


def test_parts_that_disagree_are_refused_in_one_line_and_made_again(tmp_path: Path, index: Index) -> None:
    other = Index.build(Words(), SHIPS[:2], tmp_path / "other")
    names = [next(path.glob("words-*")).name for path in (index.path, other.path)]
    data = (other.path / names[1]).read_bytes()
    (index.path / names[0]).write_bytes(data)
    with sqlite3.connect(index.path / DATABASE) as base:
        state = json.loads(base.execute("SELECT value FROM state").fetchone()[0])
        state["words"][0]["bytes"] = len(data)
        base.execute("UPDATE state SET value = ?", (seal(state | {"generation": 99}),))
    base.close()
    for question in ("brig", "bay"):
        with pytest.raises(UserError, match="do not belong together; make it again with `bertree index upgrade`"):
            index.search(question)
    index.upgrade()
    assert ids(index, "brig", mode="words") == ["a", "c"]
    index.verify()


def test_a_word_file_that_is_missing_is_made_again_by_the_command_of_the_message(index: Index) -> None:
    index.close()
    next(index.path.glob("words-*")).unlink()
    with Index.open(index.path, Words()) as opened:
        new = {"id": "e", "text": "An old brigantine."}
        for read in (lambda: opened.search("brig"), opened.verify, lambda: opened.add(new)):
            with pytest.raises(UserError, match=r"bin: is missing; make it again with `bertree index upgrade`$"):
                read()
        opened.upgrade()
        assert ids(opened, "brig", mode="words") == ["a", "c"]
        opened.verify()
