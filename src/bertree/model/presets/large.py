"""Models that need several devices: Megatron-LM's and Turing-NLG. docs/plan.md says where the shapes come from."""

from bertree.model.presets.tree import add

add(
    "megatron-bert-336m",
    "megatron-bert",
    "Shoeybi et al. 2019: pre-norm, the uncased vocabulary padded to a multiple of 128",
    "336M",
    vocab_size=30592,
)
add("megatron-bert-1.3b", "megatron-bert-336m", "Shoeybi et al. 2019", "1.3B", width=2048, heads=32)
add("megatron-bert-3.9b", "megatron-bert-1.3b", "Shoeybi et al. 2019", "3.9B", layers=48, width=2560, heads=40)

add(
    "megatron-gpt-1.2b",
    "gpt2",
    "Shoeybi et al. 2019: the vocabulary padded to 51,200",
    "1.2B",
    vocab_size=51200,
    layers=40,
    width=1536,
    heads=16,
)
add("megatron-gpt-2.5b", "megatron-gpt-1.2b", "Shoeybi et al. 2019", "2.5B", layers=54, width=1920, heads=20)
add("megatron-gpt-4.2b", "megatron-gpt-1.2b", "Shoeybi et al. 2019", "4.2B", layers=64, width=2304, heads=24)
add("megatron-gpt-8.3b", "megatron-gpt-1.2b", "Shoeybi et al. 2019", "8.3B", layers=72, width=3072, heads=32)
add(
    "t-nlg-17b",
    "gpt2",
    "Microsoft 2020: Turing-NLG",
    "17B",
    vocab_size=50432,
    layers=78,
    width=4256,
    heads=28,
)
