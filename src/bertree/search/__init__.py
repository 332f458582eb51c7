"""Indexes of documents: passages with vectors, in a folder that can be searched and changed."""
