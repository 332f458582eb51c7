"""The map of the family's four directions, whose boxes are links."""

from markupsafe import Markup

from docs.drawing import arrow, box, drawing, label, line, linked

MAP = {
    "longer": (
        "blue",
        [("Transformer-XL", "transformer-xl"), ("XLNet", "xlnet"), ("Reformer", "reformer")],
    ),
    "bigger": ("orange", [("Megatron-LM", "megatron"), ("Turing-NLG", "megatron")]),
    "smaller": ("green", [("ALBERT", "albert"), ("DistilBERT", "distilbert"), ("BiLSTM", "bilstm")]),
    "smarter": (
        "violet",
        [
            ("RoBERTa", "roberta"),
            ("Sentence-BERT", "sentence-bert"),
            ("CTRL", "ctrl"),
            ("ModernBERT", "modernbert"),
        ],
    ),
}


def family_map() -> Markup:
    """Return the four directions, with a link to the page of each member."""
    parts = [
        linked("family/elmo.md", box(2, 6, 112, 30, "ELMo")),
        linked("family/gpt.md", box(246, 6, 112, 30, "GPT-1, GPT-2")),
        linked("family/bert.md", box(130, 52, 100, 36, "BERT", "plain")),
        arrow((114, 24), (142, 50)),
        arrow((246, 24), (218, 50)),
        label(180, 22, "before BERT", "middle"),
    ]
    for number, (direction, (kind, members)) in enumerate(MAP.items()):
        x, y = (2, 202)[number % 2], (112, 260)[number // 2]
        edge = x + 156 if x < 100 else x
        parts += [
            line((180, 88), (180, y + 14), (edge, y + 14)),
            label(x + 78, y + 19, direction, "middle", "strong"),
        ]
        parts += [
            linked(f"family/{page}.md", box(x, y + 32 + 34 * n, 156, 30, name, kind))
            for n, (name, page) in enumerate(members)
        ]
    return drawing(
        "The family in four directions: longer, bigger, smaller and smarter. Every box is a link.",
        430,
        *parts,
        caption="Four directions from BERT. Each box leads to the page of its member.",
    )


FIGURES = {"map": family_map}
