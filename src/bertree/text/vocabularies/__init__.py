"""Tokenizers from vocabularies: the files of the original releases, SentencePiece models, bytes."""
