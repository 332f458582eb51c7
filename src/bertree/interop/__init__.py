"""Other people's formats: Hugging Face folders, both ways."""
