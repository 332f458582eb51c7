"""The word index: the terms of passages, counted in files beside the vectors, and their BM25 scores."""
