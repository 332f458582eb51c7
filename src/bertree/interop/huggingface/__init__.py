"""Folders of Hugging Face: families of models, their configurations and the names of their tensors."""
