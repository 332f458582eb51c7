"""Documents -> sentences, with `sentencex` (Wikimedia, MIT licence, Rust, about 300 languages, no data files).

It was chosen for its speed: it was the fastest of the splitters tried (blingfire, syntok, pysbd), and far faster than
tokenizing, as `benchmarks/data.py` shows for the two together. Its rules tend to leave two sentences together
rather than cut one in half. No character but white space is ever lost.
"""

import sentencex

from bertree.text.tokenizer_checks import is_panic

MAX_CALL = 4096  # characters per call: the library's time is quadratic on some texts


def split_sentences(document: str, language: str = "en") -> list[str]:
    """Return the sentences of a document; a line break always ends a sentence."""
    pieces: list[str] = []
    for line in document.split("\n"):
        pieces += _segment(language, line) if len(line) <= MAX_CALL else _split_long_line(language, line)
    return [sentence for piece in pieces if (sentence := piece.strip())]


def _split_long_line(language: str, line: str) -> list[str]:
    """Split a long line in several calls; the last sentence of a call is read again at the start of the next."""
    sentences: list[str] = []
    start = 0
    while start < len(line):
        end = start + MAX_CALL
        if end < len(line):
            blank = line.rfind(" ", start + MAX_CALL // 2, end)
            end = blank + 1 if blank > 0 else end
        pieces = _segment(language, line[start:end])
        if end < len(line) and len(pieces) > 1 and len(pieces[-1]) < MAX_CALL // 2:
            end -= len(pieces.pop())
        sentences += pieces
        start = end
    return sentences


def _segment(language: str, text: str) -> list[str]:
    """Return the library's segments, or the whole text if they do not add up to it."""
    try:
        pieces: list[str] = sentencex.segment(language, text)
    except BaseException as error:  # a Rust panic is not an Exception
        if not is_panic(error):
            raise
        return [text]
    return pieces if sum(map(len, pieces)) == len(text) else [text]
