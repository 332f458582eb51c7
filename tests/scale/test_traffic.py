"""The arithmetic of traffic among tensor ranks; `test_tensor` compares it with the calls that are really made."""

from bertree.model.presets import preset
from bertree.scale.plan.communication import (
    ALL_REDUCE,
    REDUCE_SCATTER,
    Traffic,
    tensor_traffic,
    total,
)

BERT = preset("bert-large").architecture


def test_two_sums_a_layer_forward_and_two_backward() -> None:
    layers = next(entry for entry in tensor_traffic(BERT, 512, 80, 4) if entry.what == "layers")
    assert layers == Traffic(ALL_REDUCE, "layers", "tensor", 4 * 24, 4 * 24 * 512 * 1024 * 4)


def test_embeddings_and_loss_are_summed_too() -> None:
    calls, size = total(tensor_traffic(BERT, 512, 80, 4))[ALL_REDUCE]
    assert calls == 4 * 24 + 1 + 3
    assert size == (4 * 24 + 1) * 512 * 1024 * 4 + 80 * 1024 * 4 + 3 * 80 * 4


def test_sequence_parallelism_sends_as_many_bytes_of_the_layers() -> None:
    def sent(sequence_parallel: bool) -> float:
        traffic = tensor_traffic(BERT, 512, 80, 4, sequence_parallel=sequence_parallel)
        return sum(entry.sent(4) for entry in traffic if entry.what == "layers")

    assert sent(True) == sent(False)


def test_rows_are_filled_up_where_ranks_have_shares_of_them() -> None:
    traffic = total(tensor_traffic(BERT, 510, 80, 4, sequence_parallel=True))
    assert traffic[REDUCE_SCATTER] == (96, 96 * 512 * 1024 * 4)


def test_one_rank_sends_nothing() -> None:
    assert tensor_traffic(BERT, 512, 80, 1) == []
