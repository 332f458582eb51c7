"""Our server with a model that returns the same vector for every text: what is left is the server's own work.

python -m benchmarks.serving.without_model MODEL PORT
"""

import sys
import time
from collections.abc import Sequence

import numpy as np
import uvicorn

from bertree.serve.http.app import build_app
from bertree.serve.http.telemetry import Log
from bertree.serve.loading import ServedSource, load_sources
from bertree.serve.settings import ServerSettings
from bertree.serve.worker import build_service, freeze_imports

freeze_imports()
registry = load_sources([ServedSource(path=sys.argv[1], name="minilm", device="cpu")])
vector = np.random.default_rng(0).random(registry.model().dimension, np.float32)


def compute(payloads: Sequence[object]) -> list[object]:
    """Return the same vector for every text, after a time in which others come, but without using the CPU."""
    time.sleep(0.0005 * len(payloads))
    return [vector] * len(payloads)


service = build_service(ServerSettings(sources=(sys.argv[1],)), registry, Log(requests=False))
registry.model().job_kind("embed").compute = compute
service.scheduler.start()
uvicorn.run(
    build_app(service),
    port=int(sys.argv[2]),
    lifespan="off",
    access_log=False,
    log_config=None,
    proxy_headers=False,
    server_header=False,
    ws="none",
)
