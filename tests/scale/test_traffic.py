"""The arithmetic of what tensor ranks tell each other; `test_tensor` compares it with calls that are counted."""

from bertree.model.presets import preset
from bertree.scale.traffic import (
    ALL_REDUCE,
    REDUCE_SCATTER,
    Exchange,
    gradient_traffic,
    tensor_traffic,
    total,
)

BERT = preset("bert-large").architecture


def test_two_sums_a_layer_forward_and_two_backward() -> None:
    layers = next(entry for entry in tensor_traffic(BERT, 512, 80, 4) if entry.what == "layers")
    assert layers == Exchange("layers", ALL_REDUCE, 4 * 24, 4 * 24 * 512 * 1024 * 4)


def test_embeddings_and_loss_are_summed_too() -> None:
    calls, size = total(tensor_traffic(BERT, 512, 80, 4))[ALL_REDUCE]
    assert calls == 4 * 24 + 1 + 3
    assert size == (4 * 24 + 1) * 512 * 1024 * 4 + 80 * 1024 * 4 + 3 * 80 * 4


def test_sequence_parallelism_sends_as_many_bytes_of_the_layers() -> None:
    def sent(sequence_parallel: bool) -> float:
        found = tensor_traffic(BERT, 512, 80, 4, sequence_parallel)
        return sum(entry.sent(4) for entry in found if entry.what == "layers")

    assert sent(True) == sent(False)


def test_rows_are_filled_up_where_ranks_have_shares_of_them() -> None:
    found = total(tensor_traffic(BERT, 510, 80, 4, sequence_parallel=True))
    assert found[REDUCE_SCATTER] == (96, 96 * 512 * 1024 * 4)


def test_one_rank_tells_nothing() -> None:
    assert tensor_traffic(BERT, 512, 80, 1) == gradient_traffic(BERT, 1) == []


def test_gradients_of_norms_and_biases_are_summed_once_a_step() -> None:
    assert gradient_traffic(BERT, 2) == [Exchange("gradients", ALL_REDUCE, 1, 4 * 24 * (4 + 2) * 1024)]
