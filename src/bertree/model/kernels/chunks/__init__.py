"""Attention over chunks: tokens in some order, cut into chunks that see themselves and their neighbors (Reformer).

order      buckets of queries by locality-sensitive hashing, and the line of slots in which the tokens of packed
           sequences lie, by bucket or as in the text
attend     attention over the chunks of a line
triton_*   the same on a GPU in half precision: hashing and order (line), attention (attend)
"""
