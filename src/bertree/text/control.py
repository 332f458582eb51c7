"""Control codes: a text before every sequence that says what kind of text follows (CTRL)."""

from bertree.errors import UserError
from bertree.text.tokenizer import Tokenizer


def control_prefix(tokenizer: Tokenizer, code: str) -> list[int]:
    """Return the tokens before a text of this code: [CLS], those of the code, [SEP].

    A tokenizer without [CLS] or [SEP] leaves them out.
    """
    ids = tokenizer.encode_plain([code])[0].ids
    before, after = tokenizer.id_of("cls"), tokenizer.id_of("sep")
    if not ids:
        raise UserError(f"control code '{code}': gives no token; choose a code that the tokenizer can read")
    if {before, after, tokenizer.id_of("unk")} & set(ids):
        raise UserError(f"control code '{code}': gives an unknown or special token; choose a code of plain words")
    return [*([] if before is None else [before]), *ids, *([] if after is None else [after])]
