"""BERT and its relatives that read both ways, and the cells of ALBERT's ablation tables."""

from bertree.model.architecture import SHARING
from bertree.model.presets.tree import add

add("bert-base", None, "Devlin et al. 2018: masked tokens and next sentence", "108M without the pooler")
add(
    "bert-tiny",
    "bert-base",
    "Turc et al. 2019: for tests and very small devices",
    layers=2,
    width=128,
    heads=2,
)
add("bert-mini", "bert-base", "Turc et al. 2019", layers=4, width=256, heads=4)
add("bert-small", "bert-base", "Turc et al. 2019", layers=4, width=512, heads=8)
add("bert-medium", "bert-base", "Turc et al. 2019", layers=8, width=512, heads=8)
add(
    "bert-large",
    "bert-base",
    "Devlin et al. 2018",
    "334M without the pooler",
    layers=24,
    width=1024,
    heads=16,
)
add(
    "megatron-bert",
    "bert-large",
    "Shoeybi et al. 2019: pre-norm",
    "345M; the arithmetic of the published shape gives 333.6M",
    vocab_size=29056,
    residual="pre-norm",
)
add(
    "modernbert-base",
    "bert-base",
    "Warner et al. 2024: rotary positions, two of three layers local, gated feed-forward, 8,192 tokens",
    "149M",
    vocab_size=50368,
    layers=22,
    ffn_width=1152,
    max_positions=8192,
    attention="full,local,local",
    positions="rotary",
    rotary_base=160_000.0,
    ffn="gated",
    segments=0,
    residual="pre-norm",
    embedding_norm=True,
    first_norm=False,
    norm_eps=1e-5,
    norm_bias=False,
    attention_bias=False,
    ffn_bias=False,
    head_bias=False,
    pooler=False,
    sequence_head="normed",
    dropout=0.0,
    attention_dropout=0.0,
    classifier_dropout=0.0,
)
add(
    "modernbert-large", "modernbert-base", "Warner et al. 2024", "395M", layers=28, width=1024, heads=16, ffn_width=2624
)
add(
    "bert-xlarge",
    "bert-large",
    "the width at which Lan et al. 2019 saw BERT degrade",
    "1270M",
    width=2048,
    heads=32,
)

add(
    "roberta-base",
    "bert-base",
    "Liu et al. 2019: dynamic masks, no sentence objective, byte-level BPE",
    "125M",
    vocab_size=50265,
    position_offset=2,
    segments=1,
    norm_eps=1e-5,
    sequence_head="tanh",
)
add("roberta-large", "roberta-base", "Liu et al. 2019", "355M", layers=24, width=1024, heads=16)

add(
    "albert-base",
    "bert-base",
    "Lan et al. 2019: small E, one shared layer, sentence order",
    "12M",
    vocab_size=30000,
    embedding_width=128,
    sharing="all",
    activation="gelu-tanh",
    dropout=0.0,
    attention_dropout=0.0,
)
add("albert-large", "albert-base", "Lan et al. 2019", "18M", layers=24, width=1024, heads=16)
add("albert-xlarge", "albert-large", "Lan et al. 2019", "60M (59M in later versions)", width=2048)
add(
    "albert-xxlarge",
    "albert-xlarge",
    "Lan et al. 2019",
    "233M to 235M; the arithmetic of the published shape gives 222.6M",
    layers=12,
    width=4096,
    heads=64,
)

add(
    "distilbert-base",
    "bert-base",
    "Sanh et al. 2019: every other layer, no segments, no pooler",
    "66M",
    layers=6,
    segments=0,
    pooler=False,
    sequence_head="relu",
    classifier_dropout=0.2,
)
add("distilroberta", "roberta-base", "Sanh et al. 2019: RoBERTa at half its depth", "82M", layers=6)

add(
    "bilstm",
    "bert-base",
    "Tang et al. 2019: a bidirectional LSTM, to be distilled from a BERT",
    "0.96M with its classifier, without the token table",
    body="bilstm",
    layers=1,
    width=400,
    embedding_width=300,
    ffn_width=200,
    init_std=0.1,
)


# The two ablations of the ALBERT paper: embedding width against sharing, on the base model.
_STUDY = {
    ("none", 64): "87M",
    ("none", 128): "89M",
    ("none", 256): "93M",
    ("none", 768): "108M",
    ("attention", 128): "64M",
    ("attention", 768): "83M",
    ("ffn", 128): "38M",
    ("ffn", 768): "57M",
    ("all", 64): "10M",
    ("all", 128): "12M",
    ("all", 256): "16M",
    ("all", 768): "31M",
}
for _sharing in SHARING:
    for _width in (64, 128, 256, 768):
        _figure = _STUDY.get((_sharing, _width), "")
        add(
            f"albert-base-e{_width}-{_sharing}",
            "albert-base",
            f"ALBERT study: E = {_width}, sharing {_sharing}",
            f"{_figure} without the pooler" if _figure and _sharing == "none" else _figure,
            study=True,
            embedding_width=_width,
            sharing=_sharing,
        )
