"""Token ids -> vectors made of the tokens' characters: ELMo's CNN with highway layers (Kim et al. 2016).

A table says how each entry of the vocabulary is spelled; the tokenizer gives it to the network after both are loaded.
Words outside the vocabulary bring their characters in the batch. The CNN computes each distinct word of a batch once,
and no more characters than its longest word has: a filter sees the same in all of the padding.

Shape letters: t tokens, d distinct words, c characters, e embedding width, f filters.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bertree.batch import Batch, SpelledWords
from bertree.errors import UserError
from bertree.model.kernels.operators import look_up
from bertree.model.layers.embeddings import Embeddings

CHARACTERS = 261  # bytes, then the beginning and the end of a text, of a word, and padding
PADDING = CHARACTERS - 1


class CharacterCnn(nn.Module):
    """Characters of words -> vectors. `filters`: length and number of each kind."""

    def __init__(
        self, width: int, *, characters: int, character_width: int, filters: Sequence[tuple[int, int]], highways: int
    ) -> None:
        super().__init__()
        self.characters, self.longest_filter = characters, max(length for length, _ in filters)
        total = sum(count for _, count in filters)
        self.table = nn.Embedding(CHARACTERS, character_width)
        self.filters = nn.ModuleList(nn.Conv1d(character_width, count, length) for length, count in filters)
        self.highways = nn.ModuleList(nn.Linear(total, 2 * total) for _ in range(highways))
        self.projection = nn.Linear(total, width)
        self.spelling: Tensor | None  # vocabulary x c, int16
        self.register_buffer("spelling", None, persistent=False)

    def open_highways(self) -> None:
        """Let the highways start by passing on what they read."""
        with torch.no_grad():
            for highway in self.highways:
                assert isinstance(highway, nn.Linear)
                highway.bias.chunk(2)[1].fill_(1.0)

    def spell(self, table_vc: Tensor) -> None:
        """Set the characters of the vocabulary."""
        assert table_vc.shape[1] == self.characters
        self.spelling = table_vc.to(self.table.weight.device)

    def forward(self, ids_t: Tensor, spelled: SpelledWords | None) -> Tensor:
        """Return the vectors of tokens (t x e); those that are spelled are not read from the table."""
        if self.spelling is None:
            raise UserError("the model reads the characters of its tokens, so it needs its tokenizer; give one")
        distinct_d, word_t = ids_t.unique(return_inverse=True)
        characters_dc = self.spelling[distinct_d].long()
        if spelled is not None:
            word_t = word_t.index_copy(0, spelled.tokens, len(distinct_d) + spelled.words)
            characters_dc = torch.cat([characters_dc, spelled.characters.long()])
        return look_up(self.vectors(characters_dc), word_t)

    def vectors(self, characters_dc: Tensor) -> Tensor:
        """Return the vectors of words (d x e)."""
        longest = int((characters_dc != PADDING).sum(1).amax()) if len(characters_dc) else 0
        characters_dc = characters_dc[:, : max(longest, 1) + self.longest_filter]
        x_dce = look_up(self.table.weight, characters_dc.flatten()).unflatten(0, characters_dc.shape)
        x_dec = x_dce.transpose(1, 2)
        x_df = torch.cat([conv(x_dec).max(-1).values for conv in self.filters], -1).relu()
        for highway in self.highways:
            new_df, gate_df = highway(x_df).chunk(2, -1)
            gate_df = gate_df.sigmoid()
            x_df = gate_df * x_df + (1 - gate_df) * new_df.relu()
        vectors_de: Tensor = self.projection(x_df)
        return vectors_de


class CharacterEmbeddings(Embeddings):
    """Vectors of the tokens' characters and dropout, in place of a table of tokens."""

    def __init__(self, cnn: CharacterCnn, dropout: float) -> None:
        super().__init__(tokens=cnn, positions=None, segments=None, norm=None, dropout=dropout, projection=None)

    def forward(self, batch: Batch) -> Tensor:
        """Return the input of the first layer (t x e)."""
        return self.to_stream(self.dropout(self.tokens(batch.ids, batch.spelled)))


def spell_network(network: nn.Module, table_vc: Tensor) -> None:
    """Give the characters of the vocabulary to the CNNs of a network that has any."""
    for module in network.modules():
        if isinstance(module, CharacterCnn):
            module.spell(table_vc)


def copy_spelling(network: nn.Module, source: nn.Module) -> None:
    """Give the characters of the vocabulary that one network knows to another."""
    tables = [module.spelling for module in source.modules() if isinstance(module, CharacterCnn)]
    if tables and tables[0] is not None:
        spell_network(network, tables[0])
