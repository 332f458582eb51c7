"""Attention over chunks: tokens in some order, cut into chunks that see themselves and their neighbours (Reformer).

hashing    rotations and the buckets of queries by locality-sensitive hashing
order      the line of slots in which the tokens of packed sequences lie, by bucket or as in the text
attend     attention over the chunks of a line, by the kernel that suits it
plain      the kernel in PyTorch, for any device
triton_*   on a GPU in half precision: hashing and order (line), attention (attend)
"""
