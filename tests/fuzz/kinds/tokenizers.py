"""Tokenizers: tokenizer.json, tokenizer_config.json, vocabulary files, and crafted parts."""

import base64
import json
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.case import OUT, Case, Change, Kind
from tests.fuzz.kinds import models
from tests.fuzz.mutations import raw, trees, values

OLD_FILES = {
    "vocab": ("vocab.txt",),
    "bpe": ("vocab.json", "merges.txt"),
    "spiece": ("spiece.model",),
    "xlnet": ("spiece.model",),
    "reformer": ("spiece.model",),
}


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _replace(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def _template(single: list[Any], special: dict[str, Any]) -> dict[str, Any]:
    return {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": special}


def _sequence(key: str, inner: Any, depth: int, name: str = "Sequence") -> Any:
    for _ in range(depth):
        inner = {"type": name, key: [inner]}
    return inner


EXPRESSIONS = ("(x+x+)+y", "(a|a)*$", "(?=)", "", "(", "[", ".*", r"\p{L}+", "(?<=a)", "x{100000}", "(.*)*\\1", "\\s+$")
JUNK = [
    base64.b64encode(data).decode() for data in (b"\xff\xff\xff\x7f" + b"x" * 40, bytes(40), b"", b"\x04\0\0\0" * 9)
]
SEQUENCE_A = {"Sequence": {"id": "A", "type_id": 0}}
PARTS: dict[str, list[Any]] = {
    "normalizer": [
        *({"type": "Precompiled", "precompiled_charsmap": junk} for junk in JUNK),
        *(_replace(pattern, content) for pattern in EXPRESSIONS for content in ("", "x" * 60, "x" * 100_000)),
        *({"type": "Prepend", "prepend": "x" * count} for count in (0, 1, 1_000_000)),
        *({"type": name} for name in ("NFC", "Nmt", "Lowercase", "StripAccents", "BertNormalizer", "X", "ByteLevel")),
        {"type": "Strip", "strip_left": True, "strip_right": True},
        {"type": "BertNormalizer", "clean_text": None, "lowercase": 1},
        {"type": "Sequence", "normalizers": [{"type": "Lowercase"}] * 5000},
        _sequence("normalizers", {"type": "Lowercase"}, 400),
    ],
    "pre_tokenizer": [
        *(_split(pattern) for pattern in EXPRESSIONS),
        *({"type": name} for name in ("BertPreTokenizer", "Whitespace", "Digits", "UnicodeScripts", "X")),
        {"type": "Metaspace", "replacement": "", "prepend_scheme": "always"},
        {"type": "Metaspace", "replacement": "▁▁", "prepend_scheme": "always"},
        {"type": "CharDelimiterSplit", "delimiter": "ab"},
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True},
        {"type": "Punctuation", "behavior": "X"},
        {"type": "FixedLength", "length": 0},
        {"type": "FixedLength", "length": 1},
        _sequence("pretokenizers", {"type": "Whitespace"}, 400),
    ],
    "post_processor": [
        {"type": "BertProcessing", "sep": ["[SEP]", 99_999], "cls": ["[CLS]", 2]},
        {"type": "BertProcessing", "sep": ["", 3], "cls": ["x", 2**32 - 1]},
        {"type": "RobertaProcessing", "sep": ["a", 3], "cls": ["b", 2], "trim_offsets": True},
        _template([{"Sequence": {"id": "B", "type_id": 0}}], {}),
        _template([{"SpecialToken": {"id": "[NOPE]", "type_id": 0}}, SEQUENCE_A], {}),
        _template([SEQUENCE_A, SEQUENCE_A], {}),
        _template([], {}),
        _template([{"Sequence": {"id": "A", "type_id": 2**32 - 1}}], {}),
        _template(
            [{"SpecialToken": {"id": "x", "type_id": 7}}, SEQUENCE_A], {"x": {"id": "x", "ids": [], "tokens": []}}
        ),
        _template(
            [{"SpecialToken": {"id": "x", "type_id": 0}}] * 100 + [SEQUENCE_A],
            {"x": {"id": "x", "ids": [2, 3], "tokens": ["a"]}},
        ),
        _template([SEQUENCE_A], {"x": {"id": "y", "ids": [2], "tokens": ["x"]}}),
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False},
        None,
    ],
    "decoder": [None, {"type": "X"}, {"type": "CTC"}, _replace("(x+x+)+y", ""), {"type": "BPEDecoder", "suffix": ""}],
    "truncation": [
        {"max_length": 0, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        {"max_length": 5, "strategy": "LongestFirst", "stride": 5, "direction": "Right"},
        {"max_length": 2**63, "strategy": "OnlySecond", "stride": 0, "direction": "Left"},
    ],
    "padding": [
        {"strategy": {"Fixed": 2**40}, "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "x"},
        {"strategy": "BatchLongest", "direction": "Left", "pad_id": 9, "pad_type_id": 9, "pad_token": ""},
    ],
    "added_tokens": [
        [{"id": n, "content": text, "special": True, "normalized": normal, "single_word": False, "lstrip": True}]
        for n, text in ((4, ""), (2**32 - 1, "x"), (5, "a"), (500, " "), (4, "[MASK]"), (0, "the"), (-1, "y"))
        for normal in (True, False)
    ],
    "model": [
        {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"},
        {"type": "WordLevel", "vocab": {}, "unk_token": ""},
        {"type": "Unigram", "vocab": [], "unk_id": None},
        {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": None},
        {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 7},
        {"type": "Unigram", "vocab": [["", -1.0], ["a", -1e38]], "unk_id": 0, "byte_fallback": True},
        {"type": "WordPiece", "vocab": {}, "unk_token": "[UNK]", "continuing_subword_prefix": "##"},
        {"type": "BPE", "vocab": {}, "merges": []},
        {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": [["a", "b"]]},
        {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]] * 3, "dropout": 2.0},
        {"type": "BPE", "vocab": {"a": 0}, "merges": [], "unk_token": "nope", "fuse_unk": True},
        {"type": "X", "vocab": {}},
    ],
}


def _verb_case(model: str, changes: list[Change], random: Random) -> Case:
    """Return a case of one of the verbs that read a tokenizer."""
    verb = random.choice(
        ("embed", "features", "prepare", "similar", *(("fill", "fill") if model != "sentences" else ()))
    )
    if verb != "prepare":
        return models.case(model, changes, random, verb)
    arguments = ["prepare", "texts.txt", "--tokenizer", model, "--out", OUT, "--workers", "1"]
    return Case({model: model, "texts.txt": "texts.txt"}, changes, arguments)


def _json(random: Random) -> Case:
    model = random.choice(("hf", "hf", "own", "sentences"))
    file = f"{model}/{random.choice(('tokenizer.json', 'tokenizer.json', 'tokenizer_config.json'))}"
    if random.random() < 0.15:
        return _verb_case(model, [random.choice((raw.path_change, raw.bytes_change))(file, random)], random)
    return _verb_case(model, [trees.json_change(file, random) for _ in range(models.several(random))], random)


def _crafted(random: Random) -> Case:
    part = random.choice(list(PARTS))
    number = random.randrange(len(PARTS[part]))
    seed = random.random() if random.random() < 0.3 else None

    def make(path: Path) -> None:
        tree = json.loads(path.read_bytes())
        tree[part] = json.loads(json.dumps(PARTS[part][number]))
        if part == "model" and random_size:
            _fill(tree["model"])
        if seed is not None:
            trees.mutate(tree, Random(seed), (part,))
        path.write_text(json.dumps(tree))

    random_size = random.random() < 0.5
    text = json.dumps(PARTS[part][number])[:80]
    return _verb_case("hf", [Change("hf/tokenizer.json", f"{part}: {text} ({seed})", make)], random)


def _fill(model: dict[str, Any]) -> None:
    """Give a vocabulary as many entries as the model's embeddings have, so that its size is no reason to refuse it."""
    if isinstance(model["vocab"], dict):
        for number in range(len(model["vocab"]), 193):
            model["vocab"][f"w{number}"] = number
    else:
        model["vocab"] += [[f"w{number}", -5.0] for number in range(len(model["vocab"]), 193)]


def _old_files(random: Random) -> Case:
    model = random.choice(list(OLD_FILES))
    file = f"{model}/{random.choice(OLD_FILES[model])}"
    if random.random() < 0.1:
        return _verb_case(model, [raw.path_change(file, random)], random)
    if random.random() < 0.2:
        settings = f"{model}/tokenizer_config.json"
        keys = ("do_lower_case", "tokenize_chinese_chars", "strip_accents", "keep_accents", "add_prefix_space")
        keys += ("model_max_length", "mask_token", "unk_token", "cls_token")
        content = json.dumps({random.choice(keys): values.value(random)}).encode()
        return _verb_case(model, [trees.document(settings, content)], random)
    make = trees.json_change if file.endswith(".json") and random.random() < 0.6 else raw.bytes_change
    return _verb_case(model, [make(file, random) for _ in range(models.several(random))], random)


KINDS = (
    Kind("tokenizer", "tokenizer.json and tokenizer_config.json", _json),
    Kind("tokenizer-crafted", "parts of a tokenizer.json: normalizers, expressions, templates, models", _crafted),
    Kind("vocabulary", "vocab.txt, vocab.json with merges.txt, spiece.model", _old_files),
)
