"""Model folders: bertree's own, Hugging Face's and sentence-transformers', read and written; ONNX, written."""
