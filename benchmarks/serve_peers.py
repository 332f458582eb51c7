"""Servers to compare with: programs of their own, started by `benchmarks.serve_client`.

python serve_peers.py sentence-transformers MODEL PORT    # behind FastAPI, as its users write it; any environment
python serve_peers.py without-model MODEL PORT            # ours, with the same vector for every text
"""

import sys
import time
from collections.abc import Sequence
from typing import Any

import uvicorn


def serve_sentence_transformers(folder: str, port: int) -> None:
    """Serve a route that calls `encode`."""
    from fastapi import FastAPI
    from pydantic import BaseModel
    from sentence_transformers import SentenceTransformer

    model, app = SentenceTransformer(folder, device="cpu"), FastAPI()

    class Request(BaseModel):
        """Texts to embed."""

        input: str | list[str]
        model: str | None = None

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/v1/embeddings")
    def embeddings(request: Request) -> dict[str, Any]:
        texts = [request.input] if isinstance(request.input, str) else request.input
        rows = model.encode(texts, show_progress_bar=False).tolist()
        data = [{"object": "embedding", "embedding": row, "index": index} for index, row in enumerate(rows)]
        return {"object": "list", "data": data, "model": "minilm", "usage": {"prompt_tokens": 0, "total_tokens": 0}}

    uvicorn.run(app, port=port, log_level="error")


def serve_without_model(folder: str, port: int) -> None:
    """Serve with a model that computes nothing, so that the server's own work is left."""
    import numpy as np

    from bertree.serve.http.app import build_app
    from bertree.serve.http.telemetry import Log
    from bertree.serve.loading import ServedSource, load_sources
    from bertree.serve.settings import ServerSettings
    from bertree.serve.worker import build_service, freeze_imports

    freeze_imports()
    registry = load_sources([ServedSource(path=folder, name="minilm", device="cpu")])
    vector = np.random.default_rng(0).random(registry.model().dimension, np.float32)

    def compute(payloads: Sequence[object]) -> list[object]:
        time.sleep(0.0005 * len(payloads))  # requests arrive meanwhile, without using the CPU
        return [vector] * len(payloads)

    service = build_service(ServerSettings(sources=(folder,)), registry, Log(requests=False))
    registry.model().job_kind("embed").compute = compute
    service.scheduler.start()
    options: dict[str, Any] = {"lifespan": "off", "access_log": False, "log_config": None, "proxy_headers": False}
    uvicorn.run(build_app(service), port=port, server_header=False, ws="none", **options)


if __name__ == "__main__":
    serve = serve_sentence_transformers if sys.argv[1] == "sentence-transformers" else serve_without_model
    serve(sys.argv[2], int(sys.argv[3]))
