"""The figures of the concepts. Figures with numbers take them from committed rows, study files or the code itself."""

import math

from markupsafe import Markup

from benchmarks.tables import read_rows
from docs.drawing import LINE, arrow, bars, box, drawing, label, line, mask, row

LENGTHS = (5, 9, 3, 7)  # of the sequences in the figure on packing
KINDS = ("blue", "orange", "green", "violet")


def packing() -> Markup:
    cell, longest = 29, max(LENGTHS)
    padded = [
        box(40 + cell * n, 34 + 24 * i, cell - 3, 20, "", KINDS[i] if n < length else "pad")
        for i, length in enumerate(LENGTHS)
        for n in range(longest)
    ]
    stream = [kind for kind, length in zip(KINDS, LENGTHS, strict=True) for _ in range(length)]
    starts = [sum(LENGTHS[:n]) for n in range(len(LENGTHS) + 1)]
    packed = [box(4 + 14.4 * n, 176, 12.4, 20, "", kind) for n, kind in enumerate(stream)]
    share = 100 * sum(LENGTHS) / (longest * len(LENGTHS))
    return drawing(
        "Four sequences in a padded batch with empty cells, and the same sequences one after the other in a stream",
        250,
        label(4, 20, f"padded: {longest * len(LENGTHS)} cells, {share:.0f} % used", kind="strong"),
        *(label(4, 49 + 24 * i, f"{length}") for i, length in enumerate(LENGTHS)),
        *padded,
        label(4, 164, f"packed: {sum(LENGTHS)} cells, all used", kind="strong"),
        *packed,
        *(line((4 + 14.4 * start - 1, 170), (4 + 14.4 * start - 1, 202)) for start in starts),
        *(label(4 + 14.4 * start - 1, 218, f"{start}", "start" if not start else "middle") for start in starts),
        label(4, 242, "boundaries (cu_seqlens)"),
        caption="A packed batch is one stream of tokens, with boundaries that say where each sequence begins.",
    )


def masks() -> Markup:
    first = [0, 0, 0, 0, 1, 1]
    positions = ["0", "1", "2", "3", "0", "1"]

    def grid(x: float, title: str, near: int, causal: bool) -> Markup:
        def sees(i: int, j: int) -> str:
            visible = first[i] == first[j] and abs(i - j) <= near and (j <= i or not causal)
            return "mark" if visible else ""

        return mask(x, 46, 17, ["" for _ in positions], positions, sees, title)

    return drawing(
        "Full, causal and local masks of a packed batch of two sequences: no token sees the other sequence",
        176,
        grid(4, "full", 9, False),
        grid(128, "causal", 9, True),
        grid(252, "local, 1", 1, False),
        label(4, 168, "Columns: positions, which start again at 0."),
        caption="Two sequences of four and two tokens in one batch. No mask crosses the boundary, and positions "
        "start at 0 in each sequence.",
    )


def store() -> Markup:
    ids = ["17", "4", "902", "8", "31", "17", "5", "66", "4", "8"]
    kinds = [KINDS[0]] * 4 + [KINDS[1]] * 3 + [KINDS[2]] * 3
    return drawing(
        "Documents become one array of token ids with the lengths of sentences and documents; batches are cut from it",
        236,
        *(box(2 + 120 * n, 8, 112, 26, f"document {n + 1}", KINDS[n]) for n in range(3)),
        *(arrow((58 + 120 * n, 34), (58 + 120 * n, 66)) for n in range(3)),
        *(box(2 + 35.7 * n, 70, 33, 26, word, kinds[n]) for n, word in enumerate(ids)),
        label(2, 116, "token ids, two bytes each: cleaned and split once"),
        row(2, 126, 60, ["4", "3", "3"], "plain", 22),
        label(188, 141, "lengths of documents"),
        arrow((180, 152), (180, 184)),
        label(190, 172, "step k, by seed and k"),
        box(2, 188, 356, 40, "batch of step k: sequences, pairs, masks", "violet"),
        caption="A token store holds text that was cleaned, split and tokenized once. What a batch contains is "
        "computed from it when the step needs it.",
    )


def resume() -> Markup:
    def steps(y: float, title: str, numbers: range, kind: str, start: int = 0) -> Markup:
        boxes = Markup("").join(
            box(4 + 39 * (n + start), y, 34, 26, f"{n + start + 1}", kind) for n in range(len(numbers))
        )
        return (label(4, y - 8, title) if title else Markup("")) + boxes

    return drawing(
        "A run that is killed in step 6 resumes from the checkpoint after step 4 and computes steps 5 and 6 again",
        246,
        steps(26, "a run that is not interrupted", range(9), "blue"),
        steps(92, "one that is killed in step 6", range(6), "blue"),
        line((214, 90), (236, 120)),
        line((236, 90), (214, 120)),
        box(126, 124, 98, 22, "checkpoint, 4", "orange"),
        arrow((156, 146), (176, 174)),
        steps(178, "", range(5), "blue", 4),
        label(4, 222, "resumed: the same batches, the same bytes"),
        label(4, 242, "batch of step k = f(seed, k)"),
        caption="A checkpoint holds weights, optimizer state and the number of the step. Batches and random "
        "numbers follow from the seed and that number.",
    )


def sentence_vectors() -> Markup:
    rows = read_rows()
    names = {
        "[CLS], untuned": "sbert/cls, untrained",
        "mean, untuned": "sbert/mean, untrained",
        "GloVe, content words": "sbert/GloVe, content words",
        "trained on NLI": "sbert/softmax (u, v, |u-v|)",
        "and on scores": "sbert/softmax, then cosine",
    }
    shown = [(name, float(rows[key]["figures"]["stsb_dev_percent"])) for name, key in names.items()]
    return drawing(
        "Correlation with human similarity: the untuned state of [CLS] is worst, training on pairs helps most",
        164,
        label(4, 16, "STS-B dev, Spearman × 100", kind="strong"),
        bars(28, [(name, value, f"{value:.1f}") for name, value in shown], 100, 150),
        caption="How well cosines of sentence vectors follow human scores: our own BERT, before and after training.",
    )


def temperature() -> Markup:
    start = [0.8, 0.1] + [0.0125] * 8
    columns = []
    for number, heat in enumerate((0.5, 1.0, 2.0, 5.0)):
        powers = [p ** (1 / heat) for p in start]
        soft = [power / math.fsum(powers) for power in powers]
        x = 6 + 90 * number
        columns += [label(x + 38, 18, f"T = {heat:g}", "middle", "strong")]
        columns += [box(x + 7.8 * n, 132 - 100 * p, 6, max(100 * p, 1), "", "mark") for n, p in enumerate(soft)]
        columns += [label(x, 150, f"{soft[0]:.2f}, {soft[1]:.2f}")]
    return drawing(
        "Ten probabilities at four temperatures: low temperatures sharpen them, high ones make them equal",
        186,
        *columns,
        line((4, 132), (356, 132)),
        label(4, 150 + 2 * LINE - 4, "Below: the two largest of ten classes."),
        caption="The same logits divided by T before the softmax. A higher temperature shows the student which "
        "wrong answers the teacher finds likely.",
    )


def batch_size() -> Markup:
    from bertree.study.load import load_study

    cells = load_study("roberta-batch").cells
    counts = (16, 4, 1)
    parts = []
    for number, (cell, count) in enumerate(zip(cells, counts, strict=True)):
        y, width = 42 + 44 * number, 220 / count
        parts += [label(2, y + 16, cell.name, kind="strong")]
        parts += [box(50 + width * n, y, width - 2, 24, "", KINDS[number]) for n in range(count)]
        parts += [label(282, y + 16, f"{cell.published['perplexity']:.2f}")]
    return drawing(
        "The same number of tokens in many small, some middle and few large steps, with the published perplexities",
        184,
        label(2, 18, "batch", kind="strong"),
        label(50, 18, "steps, one box each (not to scale)"),
        label(282, 18, "perplexity", kind="strong"),
        *parts,
        label(2, 180, "1M steps at rate 1e-4, 125K at 7e-4, 31K at 1e-3"),
        caption="RoBERTa, Table 3: the same tokens in fewer, larger steps with a higher rate. The middle one is best.",
    )


def zero() -> Markup:
    from bertree.scale.plan.memory import paper_bytes

    parameters, devices = 7.5e9, 64
    sizes = [paper_bytes(parameters, devices, stage) / 1e9 for stage in range(4)]
    divided = ("nothing", "optimizer", "+ gradients", "+ weights")
    values = [
        (f"{stage}: {what}", size, f"{size:.1f} GB")
        for stage, (what, size) in enumerate(zip(divided, sizes, strict=True))
    ]
    return drawing(
        "Bytes per device for weights, gradients and optimizer state at the four stages of ZeRO",
        140,
        label(4, 16, "stage and what is divided over the devices", kind="strong"),
        bars(28, values, 0, 118),
        caption="7.5 billion parameters on 64 devices, counted as the ZeRO paper does: 2 bytes for weights, 2 "
        "for gradients and 12 for the optimizer of each parameter.",
    )


def layers() -> Markup:
    rows = read_rows()
    parts = []
    for panel, (key, title) in enumerate((("cosine", "cosine"), ("distance", "L2 distance"))):
        x, top, bottom = 28 + 184 * panel, 34, 150
        curves = {name: rows[f"layers/{name}"]["figures"] for name in ("bert", "albert")}
        values = {name: [float(row[f"{key}_{layer}"]) for layer in range(1, 7)] for name, row in curves.items()}
        low, most = (0.8, 1.0) if key == "cosine" else (0.0, math.ceil(max(map(max, values.values()))))
        parts += [label(x, 18, title, kind="strong"), line((x, top), (x, bottom), (x + 146, bottom))]
        parts += [label(x - 5, top + 5, f"{most:g}", "end"), label(x - 5, bottom + 4, f"{low:g}", "end")]
        parts += [label(x + 13 + 24 * n, bottom + 17, f"{n + 1}", "middle") for n in range(6)]
        for name, numbers in values.items():
            points = [
                (x + 13 + 24 * n, bottom - (bottom - top) * (value - low) / (most - low))
                for n, value in enumerate(numbers)
            ]
            parts.append(line(*points, kind="dashed" if name == "albert" else ""))
            parts += [box(a - 2.5, b - 2.5, 5, 5, "", "mark" if name == "albert" else "orange") for a, b in points]
    key_y = 190
    parts += [line((28, key_y), (52, key_y)), box(37.5, key_y - 2.5, 5, 5, "", "orange"), label(58, key_y + 4, "BERT")]
    parts += [line((128, key_y), (152, key_y), kind="dashed"), box(137.5, key_y - 2.5, 5, 5, "", "mark")]
    parts += [label(158, key_y + 4, "ALBERT: shared layers")]
    return drawing(
        "Cosine and L2 distance of the input and the output of each of six layers, of a BERT and of an ALBERT",
        204,
        *parts,
        caption="Cosine and L2 distance of input and output of each layer, of two small models that differ only in "
        "whether the layers share their weights.",
    )


FIGURES = {
    "layers": layers,
    "packing": packing,
    "masks": masks,
    "store": store,
    "resume": resume,
    "sentence-vectors": sentence_vectors,
    "temperature": temperature,
    "batch-size": batch_size,
    "zero": zero,
}
