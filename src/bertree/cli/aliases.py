"""Old spellings of verbs and options, so that scripts written for them go on working. They are not shown in help."""

from collections.abc import Sequence

# Verb -> old option -> new option. A group's verbs are written "group verb".
OPTIONS = {
    "tokenizer train": {"--field": "--text"},
    "prepare": {"--field": "--text"},
    "convert": {"--dtype": "--precision"},
    "distill": {"--corpus": "--store", "--compare": "--seconds"},
    "finetune": {"--features": "--frozen"},
    "pairs": {"--least": "--min-similarity"},
    "cluster": {"--least": "--min-similarity", "--smallest": "--min-size"},
    "embed": {"--normalise": "--normalize"},
}
GROUPS = {"sentence": "embeddings"}


def translate(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of the command line with old spellings replaced by today's."""
    given = list(arguments)
    if not given:
        return given
    given[0] = GROUPS.get(given[0], given[0])
    if given[0] == "config":
        named = len(given) > 1 and not given[1].startswith("-")
        given[:1] = ["recipe", "show" if named else "list"]
    verb = given[0] if given[0] in OPTIONS else " ".join(given[:2])
    options = OPTIONS.get(verb, {})
    end = given.index("--") if "--" in given else len(given)
    for place, argument in enumerate(given[:end]):
        name, equals, value = argument.partition("=")
        if name in options:
            given[place] = options[name] + equals + value
    return given
