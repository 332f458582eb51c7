"""A program that reads a `tokenizer.json` from standard input and encodes some texts with it.

It is run by `tokenizer_checks` in a process of its own, because the library may crash or never end. Its argument is the
processor time in seconds after which it is ended (SIGXCPU). It prints the reason as JSON and exits with 1 if a text
cannot be encoded, with 3 if the file cannot be read.
"""

# Texts on which tokenizers differ: case, accents, scripts without spaces, odd spaces, digits, quotes, emoji, control
# characters, words beyond any length limit.
TEXTS = (
    "The Quick brown fox isn't JUMPING over 12,345.67 lazy dogs!",
    "Crème brûlée, naïve façade: Ångström ÑANDÚ İstanbul ẞ ﬁ ½ ²",
    "e\u0301 a\u0308 \u1e9b\u0323 \u212b \uff21\uff42\uff43",
    "今日は世界 深度学习 한국어 ภาษาไทย हिन्दी العربية עברית Ελληνικά Русский",
    "a  b\tc\nd\u00a0e\u2003f\u200bg\u3000h\x00i\x07j\ufeffk\ufffdl",
    "``quoted'' “curly” «angle» don’t — dash… #hash @at $5.00 http://example.org/a_b?c=d",
    "😀👩\u200d👩\u200d👧🏽 🇳🇱 ☃️",
    "x" * 120 + " 9,5 [MASK] <mask> [SEP] </s>",
    " leading and trailing ",
)
UNREADABLE = 3  # exit code
MEMORY = 4 << 30  # bytes


def main() -> None:
    """Encode every text alone and in a pair."""
    import json
    import resource
    import sys

    from tokenizers import Tokenizer

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[1]), int(sys.argv[1]) + 1))
    code = UNREADABLE
    try:
        tokenizer = Tokenizer.from_buffer(sys.stdin.buffer.read())
        code = 1
        for text in TEXTS:
            tokenizer.decode(tokenizer.encode(text, text).ids)
            tokenizer.encode(text)
    except BaseException as error:
        print(json.dumps(" ".join(str(error).split())[:200]))
        sys.exit(code)


if __name__ == "__main__":
    main()
