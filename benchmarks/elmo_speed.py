"""Training steps of ELMo: tokens a second, share of the peak, where the time goes, and a plain nn.LSTM beside it.

    python -m benchmarks.elmo_speed --device cuda --out rows.jsonl
    python -m benchmarks.elmo_speed --device cpu --preset elmo-tiny --batch 8 --length 32

The plain implementation has the same sizes and the same adaptive softmax (PyTorch's own), and is what a textbook does:
the CNN reads every token, and each direction of each layer is one nn.LSTM with a projection (cuDNN's on a GPU), without
clipping. Text is that of corpus/books.txt, in sequences of one length, so that padding costs neither of the two.
"""

import re
from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.common import CORPUS, Results, argument_parser, medians
from bertree.batch import Batch, PretrainingLabels
from bertree.model import cost
from bertree.model.architecture import Lstm
from bertree.model.layers.embeddings import CharacterCnn, spell_network
from bertree.model.network import build
from bertree.model.presets import preset
from bertree.model.recurrent import LstmEncoder
from bertree.objectives.pretraining import pretraining_objective
from bertree.text.cleaning import WORDS, spell_vocabulary
from bertree.train.device_setup import measure_peak_flops


class PlainElmo(nn.Module):
    """A character CNN for every token, nn.LSTM for each layer and direction, PyTorch's adaptive softmax."""

    def __init__(self, a: Lstm, cnn: CharacterCnn, spelling_vc: Tensor) -> None:
        super().__init__()
        self.cnn, self.spelling_vc = cnn, spelling_vc.long()
        self.layers = nn.ModuleList(
            nn.LSTM(a.width, a.ffn_width, proj_size=a.width, batch_first=True) for _ in range(2 * a.layers)
        )
        cutoffs = list(a.cluster_starts[1:-1])
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(a.width, a.vocab_size, cutoffs, a.embedding_divisor)

    def forward(self, ids_bl: Tensor) -> Tensor:
        x_ble = self.cnn.vectors(self.spelling_vc[ids_bl.flatten()]).unflatten(0, ids_bl.shape)
        losses = []
        for direction in range(2):
            h_ble, targets_bl = (x_ble.flip(1), ids_bl.flip(1)) if direction else (x_ble, ids_bl)
            for depth, layer in enumerate(self.layers[direction::2]):
                out_ble, _ = layer(h_ble)
                h_ble = out_ble + h_ble if depth else out_ble
            losses.append(self.softmax(h_ble[:, :-1].flatten(0, 1).float(), targets_bl[:, 1:].flatten()).loss)
        return sum(losses)


def read_text(a: Lstm, tokens: int) -> tuple[Tensor, Tensor]:
    """Return the ids of a text, by frequency, and how the vocabulary is spelled."""
    words = re.findall(WORDS, CORPUS.read_text())
    vocabulary = ["<S>", "</S>", "<UNK>", *(word for word, _ in Counter(words).most_common(a.vocab_size - 3))]
    number = {word: i for i, word in enumerate(vocabulary)}
    vocabulary += ["unused"] * (a.vocab_size - len(vocabulary))
    ids = [number.get(word, 2) for word in words[5000 : 5000 + tokens]]
    return torch.tensor(ids), torch.from_numpy(spell_vocabulary(vocabulary, 0, 1, a.characters))


def make_step(model: nn.Module | None, loss: Callable[[], Tensor], precision: str, device: str) -> Callable[[], object]:
    """Return a training step: of a whole model with AdamW, or of a part of one, forwards and backwards."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=device == "cuda") if model is not None else None

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
            total = loss()
        total.backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()

    return step


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--preset", default="elmo")
    parser.add_argument("--vocabulary", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=256, help="sequences")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    a = preset(options.preset).architecture.with_values({"vocab_size": options.vocabulary, "dropout": 0.0})
    assert isinstance(a, Lstm)
    tokens, device = options.batch * options.length, torch.device(options.device)
    ids_t, spelling_vc = read_text(a, tokens)
    batch = Batch.pack(ids_t.view(options.batch, -1).tolist()).to(device)
    last = batch.positions == options.length - 1
    chosen_m = (~last).nonzero()[:, 0]
    labels = PretrainingLabels(chosen_m, batch.ids[chosen_m + 1])
    batch = Batch(**vars(batch) | {"labels": labels})
    network = build(a, {"mask": 0}).to(device)
    spell_network(network, spelling_vc)
    objective, encoder = pretraining_objective(mlm=1.0), network.encoder
    assert isinstance(encoder, LstmEncoder)
    cnn = encoder.embeddings.tokens
    assert isinstance(cnn, CharacterCnn)
    plain = PlainElmo(a, cnn, spelling_vc.to(device)).to(device)
    hidden_th = torch.randn(tokens, encoder.width, device=device, requires_grad=True)
    x_dte = torch.randn(2, tokens, a.width, device=device, requires_grad=True)
    rows_bl = batch.ids.view(options.batch, -1)
    parts: dict[str, tuple[nn.Module | None, Callable[[], Tensor]]] = {
        "ours": (network, lambda: objective(network, batch).losses["mlm"].sum),
        "plain nn.LSTM": (plain, lambda: plain(rows_bl)),
        "ours: character CNN": (None, lambda: encoder.embeddings(batch).float().sum()),
        "ours: LSTM layers": (
            None,
            lambda: [*encoder.stack(x_dte, [options.batch] * options.length)][-1].float().sum(),
        ),
        "ours: softmax": (None, lambda: objective.terms["mlm"].loss(network, hidden_th, batch).sum),
    }
    precisions = ("bf16", "fp32") if device.type == "cuda" else ("fp32",)
    steps = {
        f"{name}, {kind}": make_step(*part, kind, device.type) for kind in precisions for name, part in parts.items()
    }
    peak, results = measure_peak_flops(device), Results("elmo-speed", options.out)
    for name, seconds in medians(steps, options.repeats).items():
        share = cost.training_flops(a, options.length) * tokens / seconds / peak if peak and "ours," in name else None
        results.add(name, tokens_per_second=tokens / seconds, milliseconds=1e3 * seconds, share_of_peak=share)
    results.print_table()


if __name__ == "__main__":
    main()
