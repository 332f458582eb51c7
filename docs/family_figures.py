"""The figures of the family's members."""

from markupsafe import Markup

from docs.drawing import arrow, box, drawing, label, line, mask, row


def _join(*many: Markup) -> Markup:
    return Markup("").join(many)


def bert() -> Markup:
    words = ["[CLS]", "the", "[MASK]", "[SEP]", "it", "slept", "[SEP]"]
    return drawing(
        "BERT reads two segments at once; the state of [CLS] says whether B follows A, that of [MASK] which word is "
        "hidden",
        222,
        box(2, 8, 96, 40, "B follows A?\n(NSP)", "green"),
        box(106, 8, 96, 40, "which word?\n“cat” (MLM)", "orange"),
        arrow((25, 78), (25, 52)),
        arrow((127, 78), (140, 52)),
        box(2, 78, 354, 40, "12 layers: every token sees\nevery other, on both sides", "blue"),
        *(arrow((25 + 51 * n, 146), (25 + 51 * n, 121)) for n in range(7)),
        row(2, 146, 51, words),
        row(2, 176, 51, list("AAAA"), "green", 18),
        row(206, 176, 51, list("BBB"), "violet", 18),
        label(2, 213, "token + segment + position, added up"),
        caption="BERT: two segments in one sequence. Two heads read its states: one guesses the hidden word, one says "
        "whether segment B follows segment A.",
    )


def roberta() -> Markup:
    def masks(x: float, title: str, hidden: list[tuple[int, ...]]) -> Markup:
        grid = mask(
            x,
            34,
            18,
            [f"{n + 1}" for n in range(len(hidden))],
            [""] * 8,
            lambda i, j: "mark" if j in hidden[i] else "plain",
        )
        return label(x, 22, title, kind="strong") + grid

    return drawing(
        "Static masks hide the same tokens each time a text is read; dynamic masks hide other tokens each time",
        138,
        masks(26, "static", [(1, 6)] * 4),
        masks(212, "dynamic", [(1, 6), (3, 4), (0, 5), (2, 7)]),
        label(26, 128, "Rows: times a text of eight tokens is read."),
        caption="RoBERTa masks other tokens (filled) each time it reads a text. With static masks a model can "
        "learn the hidden words by heart.",
    )


def albert() -> Markup:
    stack = [box(208, 36 + 17 * n, 54, 14, "", ("blue", "green", "orange", "violet")[n % 4]) for n in range(8)]
    return drawing(
        "ALBERT has narrow embeddings with a projection, and one layer that is applied again and again",
        204,
        label(2, 18, "embeddings", kind="strong"),
        box(2, 36, 66, 62, "V × H", "blue"),
        label(2, 118, "BERT-base: 23.4M"),
        box(2, 132, 20, 46, "", "blue"),
        box(26, 132, 66, 20, "E × H", "blue"),
        label(26, 173, "V × E"),
        label(2, 197, "ALBERT-base: 3.9M"),
        label(208, 18, "layers", kind="strong"),
        *stack,
        label(208, 190, "BERT: 12"),
        box(296, 92, 54, 18, "", "blue"),
        arrow((323, 92), (323, 72), (288, 72), (288, 130), (323, 130), (323, 113)),
        label(294, 60, "12 times"),
        label(294, 190, "ALBERT: 1"),
        caption="ALBERT: a table of narrow embeddings (E = 128) and a projection in place of a wide table, and "
        "one set of weights for all layers. The computation stays that of twelve layers.",
    )


def distilbert() -> Markup:
    copied = (0, 2, 4, 6, 8, 10)
    tops = [146 - 11 * n for n in range(12)]
    teacher = [box(30, y, 84, 9, "", "orange" if n in copied else "plain") for n, y in enumerate(tops)]
    student = [box(176, 142 - 22 * n, 84, 12, "", "orange") for n in range(6)]
    copies = [arrow((116, tops[layer] + 4.5), (174, 148 - 22 * n)) for n, layer in enumerate(copied)]
    return drawing(
        "DistilBERT begins with six of the twelve layers of its teacher and learns from three losses",
        226,
        label(30, 16, "teacher: 12 layers", kind="strong"),
        label(176, 16, "student: 6", kind="strong"),
        *teacher,
        *student,
        *copies,
        label(270, 48, "no segments,\nno pooler"),
        box(2, 168, 116, 52, "its probabilities\nat a temperature", "blue"),
        box(122, 168, 116, 52, "the direction of\nits states (cosine)", "green"),
        box(242, 168, 116, 52, "the masked\ntokens", "plain"),
        caption="DistilBERT: every other layer of BERT as a start, then three losses: the teacher’s "
        "distribution, the cosine of the hidden states, and the masked tokens.",
    )


def bilstm() -> Markup:
    words = ["a", "fine", "film", "."]
    xs = [32 + 60 * n for n in range(4)]
    return drawing(
        "A bidirectional LSTM reads a text, and its logits are fitted to those of a fine-tuned BERT",
        224,
        *(box(x - 24, 188, 48, 24, word) for x, word in zip(xs, words, strict=True)),
        *(box(x - 24, 144, 48, 22, "→", "blue") + box(x - 24, 112, 48, 22, "←", "green") for x in xs),
        *(arrow((x, 188), (x, 168)) for x in xs),
        box(8, 62, 206, 28, "last states side by side", "plain"),
        arrow((xs[3], 112), (196, 92)),
        arrow((xs[0], 112), (32, 92)),
        box(8, 10, 88, 30, "its logits", "orange"),
        arrow((52, 62), (52, 43)),
        box(250, 10, 108, 30, "BERT’s logits", "orange"),
        line((98, 25), (248, 25), kind="dashed"),
        label(173, 20, "squared error", "middle"),
        label(250, 128, "two LSTMs,\nless than 1M\nparameters"),
        caption="The student of Tang et al.: an LSTM in each direction. It is trained on the logits of a "
        "fine-tuned BERT, not on its labels.",
    )


def sentence_bert() -> Markup:
    def tower(x: float, name: str, vector: str) -> Markup:
        return _join(
            box(x, 186, 130, 26, name),
            arrow((x + 65, 186), (x + 65, 168)),
            box(x, 128, 130, 38, "encoder", "blue"),
            arrow((x + 65, 128), (x + 65, 112)),
            box(x, 82, 130, 28, "mean of the states", "green"),
            arrow((x + 65, 82), (x + 65, 68)),
            box(x + 35, 42, 60, 24, vector, "orange"),
        )

    return drawing(
        "Sentence-BERT puts each sentence through the same encoder, takes the mean of its states and compares vectors",
        220,
        tower(2, "sentence A", "u"),
        tower(228, "sentence B", "v"),
        line((134, 147), (226, 147), kind="dashed"),
        label(180, 140, "one set", "middle"),
        label(180, 162, "of weights", "middle"),
        box(134, 8, 92, 26, "cos(u, v)", "orange"),
        arrow((97, 52), (150, 37)),
        arrow((263, 52), (210, 37)),
        caption="Sentence-BERT: one vector for each sentence, so n sentences need n passes. A cross-encoder "
        "reads every pair and needs n (n − 1) / 2.",
    )


def elmo() -> Markup:
    def stack(x: float, title: str, sign: str, kind: str) -> Markup:
        layers = _join(*(box(x, 112 - 36 * n, 104, 24, f"LSTM {sign} layer {n + 1}", kind) for n in range(2)))
        return layers + label(x + 52, 66, title, "middle") + arrow((x + 52, 112), (x + 52, 102))

    return drawing(
        "ELMo turns characters into word vectors, reads them with a language model in each direction, and weights the "
        "layers",
        222,
        box(60, 190, 240, 26, "characters of each word"),
        arrow((180, 190), (180, 178)),
        box(60, 150, 240, 26, "CNN: a vector for each word", "orange"),
        arrow((120, 150), (100, 138)),
        arrow((240, 150), (260, 138)),
        stack(28, "next word", "→", "blue"),
        stack(228, "word before", "←", "green"),
        box(110, 8, 140, 40, "weighted sum\nof the layers", "plain"),
        arrow((80, 52), (80, 28), (107, 28)),
        arrow((280, 52), (280, 28), (253, 28)),
        caption="ELMo: two language models that do not see each other. A task learns the weights of the sum; the "
        "encoder stays as it is.",
    )


def gpt() -> Markup:
    words = ["the", "cat", "sat", "down"]
    return drawing(
        "In BERT every token sees every token; in GPT a token sees itself and the tokens before it",
        198,
        mask(40, 44, 33, words, words, lambda i, j: "mark", "BERT: full"),
        mask(224, 44, 33, words, words, lambda i, j: "mark" if j <= i else "", "GPT: causal"),
        label(2, 194, "Row: the token that reads. Column: what it sees."),
        caption="GPT reads from left to right, so every token can be asked for the next one. BERT hides some tokens "
        "instead, because each of them sees the whole text.",
    )


def transformer_xl() -> Markup:
    columns = ["1", "2", "3", "4", "5", "6", "7", "8"]

    def sees(i: int, j: int) -> str:
        return "" if j > 4 + i else "violet" if j < 4 else "mark"

    return drawing(
        "The tokens of a segment see the memory of the segment before and the tokens before them",
        186,
        mask(40, 50, 28, columns[4:], columns, sees),
        label(40, 20, "memory: states kept", kind="strong"),
        label(268, 20, "segment", "end", kind="strong"),
        line((152, 26), (152, 164)),
        label(276, 70, "Position:\ndistance\nof tokens"),
        label(40, 182, "No gradient flows into the memory."),
        caption="Transformer-XL: tokens 5 to 8 see the states of the segment before them. Positions are "
        "distances, since a kept state has no place of its own in the new segment.",
    )


def xlnet() -> Markup:
    place = {3: 0, 2: 1, 4: 2, 1: 3}  # the order 3, 2, 4, 1
    names = ["1", "2", "3", "4"]

    def content(i: int, j: int) -> str:
        return "mark" if place[j + 1] <= place[i + 1] else ""

    def query(i: int, j: int) -> str:
        return "mark" if place[j + 1] < place[i + 1] else ""

    return drawing(
        "With the order 3, 2, 4, 1 the content stream sees tokens up to its own, the query stream only those before it",
        218,
        label(2, 20, "order of prediction", kind="strong"),
        row(150, 4, 44, ["3", "2", "4", "1"], "orange"),
        mask(28, 72, 26, names, names, content, "content stream"),
        mask(212, 72, 26, names, names, query, "query stream"),
        label(2, 196, "Query: knows its position, not its token, and\npredicts it. Content: what others may read."),
        caption="XLNet: the text stays in its order, only the attention follows the permutation. Token 1 comes "
        "last here and sees the whole text; token 3 comes first and sees nothing.",
    )


def ctrl() -> Markup:
    def text(y: float, code: str, words: list[str], kind: str) -> Markup:
        boxes = box(2, y, 76, 28, code, kind) + _join(
            *(box(88 + 68 * n, y, 62, 28, word, "plain" if n < 2 else kind) for n, word in enumerate(words))
        )
        return boxes + arrow((40, y), (40, y - 10), (253, y - 10), (253, y - 2))

    return drawing(
        "The same two words continue differently after the control codes Horror and Reviews",
        118,
        text(22, "Horror", ["A", "knife", "handle", "pulled"], "violet"),
        text(82, "Reviews", ["A", "knife", "is a tool", "and"], "green"),
        caption="CTRL: a control code before the text is read and not predicted. All that follows is predicted "
        "with the code in view, so it sets the style. (Beginnings of examples in the paper.)",
    )


def reformer() -> Markup:
    buckets = [0, 2, 1, 0, 1, 2, 2, 0, 1, 0, 2, 1]
    kinds = ("blue", "orange", "green")
    order = sorted(range(12), key=lambda n: (buckets[n], n))
    xs = [4 + 29.5 * n for n in range(12)]
    return drawing(
        "Reformer sorts tokens by the bucket of their hash and divides them into chunks that attend to each other",
        188,
        label(2, 16, "tokens in the order of the text, coloured by bucket"),
        *(box(x, 24, 25, 24, f"{n + 1}", kinds[buckets[n]]) for n, x in enumerate(xs)),
        *(line((xs[n] + 12.5, 49), (xs[place] + 12.5, 91)) for place, n in enumerate(order)),
        *(box(xs[place], 92, 25, 24, f"{n + 1}", kinds[buckets[n]]) for place, n in enumerate(order)),
        *(
            line((xs[4 * c], 122), (xs[4 * c], 128), (xs[4 * c + 3] + 25, 128), (xs[4 * c + 3] + 25, 122))
            for c in range(3)
        ),
        *(label(xs[4 * c] + 57, 146, f"chunk {c + 1}", "middle") for c in range(3)),
        arrow((xs[7], 154), (xs[3], 154)),
        arrow((xs[11], 154), (xs[7] + 6, 154)),
        label(2, 180, "A chunk attends to itself and to the chunk before."),
        caption="Reformer’s LSH attention: similar vectors tend to have the same hash. Sorting puts them side by "
        "side, so each token compares itself with some dozens of others instead of all.",
    )


def megatron() -> Markup:
    def device(y: float, name: str, kind: str) -> Markup:
        return _join(
            label(74, y - 5, name),
            box(74, y, 84, 40, "columns\nof A, GELU", kind),
            arrow((160, y + 20), (178, y + 20)),
            box(180, y, 84, 40, "rows\nof B", kind),
            arrow((266, y + 20), (290, 91)),
            arrow((48, 91), (72, y + 20)),
        )

    return drawing(
        "A feed-forward layer on two devices: each has some columns of the first matrix and the same rows of the "
        "second, and their results are added",
        168,
        box(2, 72, 44, 38, "X", "plain"),
        device(28, "device 1", "blue"),
        device(114, "device 2", "green"),
        box(292, 68, 66, 46, "sum of all\ndevices", "orange"),
        caption="Megatron-LM: each device computes its part of both matrices, and one sum per block joins them. "
        "Attention is divided by heads in the same way.",
    )


def modernbert() -> Markup:
    layers = [box(4 + 16 * n, 24, 13, 30, "", "orange" if n % 3 == 0 else "blue") for n in range(22)]
    none = [""] * 11
    return drawing(
        "Every third of ModernBERT’s 22 layers attends to the whole text, the others to near tokens",
        218,
        label(4, 16, "22 layers, the first on the left"),
        *layers,
        box(4, 64, 13, 13, "", "orange"),
        label(22, 75, "global"),
        box(94, 64, 13, 13, "", "blue"),
        label(112, 75, "local: 64 tokens to each side"),
        mask(24, 108, 9.6, none, none, lambda i, j: "mark", "global"),
        mask(212, 108, 9.6, none, none, lambda i, j: "mark" if abs(i - j) <= 2 else "", "local"),
        caption="ModernBERT: two of three layers are local, so most of the attention costs the same per token at "
        "any length. Positions are rotations of queries and keys.",
    )


FIGURES = {
    "bert": bert,
    "roberta": roberta,
    "albert": albert,
    "distilbert": distilbert,
    "bilstm": bilstm,
    "sentence-bert": sentence_bert,
    "elmo": elmo,
    "gpt": gpt,
    "transformer-xl": transformer_xl,
    "xlnet": xlnet,
    "ctrl": ctrl,
    "reformer": reformer,
    "megatron": megatron,
    "modernbert": modernbert,
}
