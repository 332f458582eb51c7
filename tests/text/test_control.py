"""The tokens that stand before a text with a control code."""

import pytest
from tokenizers import AddedToken, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from bertree.errors import UserError
from bertree.text.framing import control_prefix
from bertree.text.tokenizer import Tokenizer

WORDS = ("Books", "Links", "cnn", "com")


def tokenizer(*special: str) -> Tokenizer:
    """A tokenizer of whole words."""
    vocabulary = {token: number for number, token in enumerate((*special, *WORDS))}
    backend = Backend(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens([AddedToken(token) for token in special])
    return Tokenizer(backend)


@pytest.mark.parametrize(
    ("special", "code", "tokens"),
    [
        (("[UNK]", "[CLS]", "[SEP]"), "Books", ["[CLS]", "Books", "[SEP]"]),
        (("[UNK]", "[CLS]", "[SEP]"), "Links cnn com", ["[CLS]", "Links", "cnn", "com", "[SEP]"]),
        (("[UNK]", "[SEP]"), "Books", ["Books", "[SEP]"]),
        (("[UNK]",), "Books", ["Books"]),
    ],
)
def test_a_prefix_has_the_special_tokens_that_there_are(special: tuple[str, ...], code: str, tokens: list[str]) -> None:
    trained = tokenizer(*special)
    assert [trained.backend.id_to_token(number) for number in control_prefix(trained, code)] == tokens


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("", "control code '': gives no token"),
        ("  ", "gives no token"),
        ("[SEP] Books", "'\\[SEP\\] Books': gives an unknown or special token"),
        ("Films", "control code 'Films': gives an unknown or special token"),
    ],
)
def test_a_code_that_cannot_be_read_is_refused(code: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        control_prefix(tokenizer("[UNK]", "[CLS]", "[SEP]"), code)
