"""Batch -> hidden states: the design space, the packed encoder and its heads."""
