"""What a transformer sees beside the tokens of a batch.

Memory and cache are explicit states: `encode` takes one and returns the next. A batch's `continuation` says which
sequence continues which lane.

    memory         inputs of the layers at the last tokens of each lane (Transformer-XL). Keys and values are computed
                   from them anew, so it is for training and for reading long texts segment by segment
    cache          keys and values of all tokens of each lane, written in place: for generating one token at a time
    two streams    rows that predict the tokens of a permutation (XLNet), with or without a memory
"""

from bertree.model.past.cache import CachePast
from bertree.model.past.lanes import KEYS, LENGTHS, MEMORY, VALUES
from bertree.model.past.memory import MemoryPast
from bertree.model.past.two_streams import TwoStreams

__all__ = ["KEYS", "LENGTHS", "MEMORY", "VALUES", "CachePast", "MemoryPast", "Past", "TwoStreams"]

Past = MemoryPast | CachePast | TwoStreams
