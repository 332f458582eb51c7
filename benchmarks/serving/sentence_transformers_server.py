"""sentence-transformers behind FastAPI, as its users write it: a route that calls `encode`.

Runs in an environment of its own: python sentence_transformers_server.py MODEL PORT
"""

import sys
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

model = SentenceTransformer(sys.argv[1], device="cpu")
app = FastAPI()


class Request(BaseModel):
    """Texts to embed."""

    input: str | list[str]
    model: str | None = None


@app.get("/health")
def health() -> dict[str, str]:
    """Say that it is alive."""
    return {"status": "ok"}


@app.post("/v1/embeddings")
def embeddings(request: Request) -> dict[str, Any]:
    """Return the vectors of texts."""
    texts = [request.input] if isinstance(request.input, str) else request.input
    rows = model.encode(texts, show_progress_bar=False).tolist()
    data = [{"object": "embedding", "embedding": row, "index": index} for index, row in enumerate(rows)]
    return {"object": "list", "data": data, "model": "minilm", "usage": {"prompt_tokens": 0, "total_tokens": 0}}


uvicorn.run(app, port=int(sys.argv[2]), log_level="error")
