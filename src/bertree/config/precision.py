"""Names of precisions, in Python and on the command line. torch is imported only to ask what this CPU can compute."""

from functools import cache

from bertree.errors import UserError

PRECISIONS = {  # and their synonyms
    "float32": ("fp32", "f32", "float", "single"),
    "bfloat16": ("bf16",),
    "float16": ("fp16", "f16", "half"),
    "int8": ("i8",),
}
_NAMES = {name: precision for precision, synonyms in PRECISIONS.items() for name in (precision, *synonyms)}


def parse_precision(value: object) -> str:
    """Return the name of a precision (float32, bfloat16, float16, int8) from a name, a synonym or a torch dtype."""
    name = str(value).removeprefix("torch.").lower()
    if name not in _NAMES:
        *others, last = PRECISIONS
        raise UserError(f"precision '{value}': must be {', '.join(others)} or {last}")
    return _NAMES[name]


@cache
def has_native_bfloat16() -> bool:
    """True if this CPU has instructions for bfloat16 (AVX512-BF16 or AMX on x86, BF16 on ARM).

    Others emulate it, several times slower than float32.
    """
    from bertree.model.torch_internals import cpu_has_bfloat16

    return cpu_has_bfloat16()
