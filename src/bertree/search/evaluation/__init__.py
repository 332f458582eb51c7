"""How well an index finds the documents that answer questions."""
