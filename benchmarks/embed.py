"""Vectors a second: bertree beside sentence-transformers, transformers, ONNX Runtime and OpenVINO, in one run.

    python -m benchmarks.embed                                     # two cores, real MiniLM weights, under four minutes
    python -m benchmarks.embed --preset bert-base --texts 16 --join 20    # texts of 256 tokens
    python -m benchmarks.embed --device cuda --dtype float16 --preset bert-base --texts 20000

The same ragged texts for all. sentence-transformers encodes with its defaults. The others are used as a careful user
would: sorted by length, padded to the longest of a batch, at the batch size that is best for each here. ONNX Runtime
and OpenVINO read the file that `bertree convert --to onnx` writes; their int8 is ONNX Runtime's dynamic quantisation
and, for OpenVINO, its static one (calibrated on 64 of the texts), which it computes faster than the dynamic. Every row
gives the cosine of its vectors with float32. What is not installed is left out, with a message. On the CPU a last row
computes the encoder's matrix products and nothing else, in float32: a bound for whoever computes in it.
"""

import argparse
import importlib
import importlib.util
import logging
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bertree
from benchmarks.common import CORPUS, Results, argument_parser, medians, real_weights, sentences
from bertree.config.names import resolve_model_path
from bertree.inference.cpu_linear import linear_class
from bertree.inference.embedding import Vectors
from bertree.interop import folder, onnx
from bertree.model.pooling import PoolingConfig
from bertree.text.tokenizer import Tokenizer

os.environ.setdefault("HF_HUB_OFFLINE", "1")
Ids = list[list[int]]
Peer = Callable[[Ids, int], Vectors]  # ids and a batch size -> vectors
SAMPLE = 160  # texts on which a batch size is chosen
CALIBRATION = 64
BOUND = "the matrix products alone, float32"
PIECE = 1024  # tokens a product is computed for at once


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="", help="of all rows on a GPU; on the CPU float32, bfloat16 and int8 each")
    parser.add_argument("--preset", help="random weights of this preset instead of the real MiniLM")
    parser.add_argument("--file", type=Path, default=CORPUS, help="one text a line")
    parser.add_argument("--texts", type=int, default=500)
    parser.add_argument("--join", type=int, default=1, help="lines in one text: 20 fill 256 tokens")
    parser.add_argument("--max-length", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch-sizes", type=int, nargs="+")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    options.batch_sizes = options.batch_sizes or ([256, 512, 1024, 2048] if options.device == "cuda" else [8, 16, 32])
    with tempfile.TemporaryDirectory() as scratch:
        compare(model_folder(options.preset, Path(scratch)), options, Path(scratch))


def model_folder(preset: str | None, scratch: Path) -> Path:
    """The real weights, or a preset's with the tokenizer of the default model."""
    if preset is None:
        return real_weights()
    model = bertree.load(preset)
    model.tokenizer = Tokenizer.load(resolve_model_path("default"))
    model.network.heads.clear()
    model.vector = PoolingConfig("mean", True)
    model.save(scratch / "model")
    return scratch / "model"


def compare(place: Path, options: argparse.Namespace, scratch: Path) -> None:
    """Time everything in turns and print one table."""
    lines = sentences(options.file, options.texts * options.join)
    texts = [" ".join(lines[i :: options.texts]) for i in range(options.texts)]
    reader = bertree.load(place)
    ids = [e.ids for e in reader.tokenize(texts, options.max_length)]
    wanted = bertree.load(place, device=options.device).embed(texts, max_length=options.max_length)
    runs: dict[str, Callable[[], Vectors]] = {}
    for name, peer in peers(place, options, scratch, ids).items():
        # A GPU is fast enough to try the sizes on all texts: in a sample there are too few large batches.
        sample = ids if options.device == "cuda" else ids[: max(SAMPLE, len(ids) // 10)]
        size = best(peer, sample, options.batch_sizes)
        runs[f"{name}, batch {size}, from ids"] = lambda peer=peer, size=size: peer(ids, size)  # type: ignore[misc]
        runs[f"{name}, batch {size}, from texts"] = lambda peer=peer, size=size: peer(  # type: ignore[misc]
            [e.ids for e in reader.tokenize(texts, options.max_length)], size
        )
    if encode := theirs(place, options):
        runs["sentence-transformers, from texts"] = lambda: encode(texts)
    halves = ["bfloat16"] if computes_bfloat16() else []
    for dtype in [options.dtype or "float16"] if options.device == "cuda" else ["float32", *halves, "int8"]:
        for start in ("ids", "texts"):
            runs[f"bertree {dtype}, from {start}"] = ours(place, options, dtype, start, texts)
    if options.device == "cpu":
        runs[BOUND] = bound(reader, sum(map(len, ids)))
    near = {name: closeness(run(), wanted) for name, run in runs.items() if name.endswith("texts")}
    times = medians(runs, options.repeats)  # type: ignore[arg-type]
    base = times.get("sentence-transformers, from texts")
    lengths = list(map(len, ids))
    packages = [n for n in ("transformers", "sentence-transformers", "onnxruntime", "openvino") if installed(n)]
    note = (
        f"{len(texts)} texts of {min(lengths)} to {max(lengths)} tokens, {sum(lengths) / len(texts):.1f} on average, "
        f"medians of {options.repeats}; {', '.join(tiles()) or 'no VNNI'}."
    )
    kind = f"{options.preset or 'minilm'}{'-full' * (options.join > 1)}"
    if options.device == "cpu" and "amx_int8" not in tiles():
        kind += "-without-amx"
    results = Results(f"embed/{kind}", options.out, packages, note)
    for name, seconds in times.items():
        results.add(
            name,
            texts_per_second=round(len(texts) / seconds, 1 if len(texts) < 100 * seconds else None),
            times_sentence_transformers=round(base / seconds, 2) if base else None,
            cosine_with_float32=round(near[name], 5) if name in near else None,
        )
    results.print_table()


def tiles() -> list[str]:
    """What the CPU brings for 8-bit integers and bfloat16: it decides which precision pays."""
    flags = Path("/proc/cpuinfo").read_text().split() if Path("/proc/cpuinfo").exists() else []
    return [name for name in ("amx_bf16", "amx_int8", "avx512_bf16", "avx512_vnni", "avx_vnni") if name in flags]


def computes_bfloat16() -> bool:
    """Whether the CPU has instructions for it; without them OpenVINO takes minutes and bertree computes in float32."""
    return bool({"amx_bf16", "avx512_bf16"} & set(tiles()))


def closeness(embedded: Vectors, wanted: Vectors) -> float:
    """Mean cosine of vectors in the same order."""
    lengths = np.linalg.norm(embedded, axis=1) * np.linalg.norm(wanted, axis=1)
    return float(((embedded * wanted).sum(1) / lengths).mean())


def ours(place: Path, options: argparse.Namespace, dtype: str, start: str, texts: list[str]) -> Callable[[], Vectors]:
    """bertree, tokenising or not."""
    model = bertree.load(place, device=options.device, precision=dtype)
    if start == "ids":  # the tokenizer is replaced by what it would say
        ids_of = dict(zip(texts, model.tokenize(texts, options.max_length), strict=True))
        model.__dict__["tokenize"] = lambda some, limit=None: [ids_of[text] for text in some]
    return lambda: model.embed(texts, max_length=options.max_length)


def bound(model: bertree.Model, tokens: int) -> Callable[[], Vectors]:
    """The products of every layer for so many tokens, on weights that were packed before."""
    kind: Any = linear_class(torch.float32)
    layers = [
        (kind(module), torch.randn(PIECE, module.in_features))
        for module in model.network.encoder.get_submodule("stack").modules()
        if isinstance(module, torch.nn.Linear)
    ]

    @torch.no_grad()
    def run() -> Vectors:
        for start in range(0, tokens, PIECE):
            for product, x in layers:
                product(x[: tokens - start])
        return np.empty(0, np.float32)

    return run


def theirs(place: Path, options: argparse.Namespace) -> Callable[[list[str]], Vectors] | None:
    """sentence-transformers, as it comes."""
    if not installed("sentence-transformers"):
        return None
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(place), device=options.device)
    model.max_seq_length = options.max_length
    if options.device == "cuda":
        model.to(getattr(torch, options.dtype or "float16"))
    return lambda texts: np.asarray(model.encode(texts, show_progress_bar=False), np.float32)


def peers(place: Path, options: argparse.Namespace, scratch: Path, ids: Ids) -> dict[str, Peer]:
    """Everyone who starts from ids."""
    runners = {}
    if installed("transformers"):
        dtype = (options.dtype or "float16") if options.device == "cuda" else "float32"
        runners[f"transformers {dtype}, sorted"] = transformers_peer(place, options.device, dtype)
    if options.device == "cuda":
        return runners
    contents = folder.read(place)
    files = {}
    if installed("onnxruntime") and installed("onnxscript"):
        for dtype in onnx.PRECISIONS:
            onnx.write(contents, scratch / dtype, dtype)
            files[dtype] = scratch / dtype / onnx.FILE
            runners[f"ONNX Runtime {dtype}, sorted"] = runtime_peer(files[dtype])
    if installed("openvino") and files:
        calibrated(files["float32"], scratch / "static.onnx", ids[:CALIBRATION])
        runners["OpenVINO float32, sorted"] = openvino_peer(files["float32"], "f32")
        if computes_bfloat16():
            runners["OpenVINO bfloat16, sorted"] = openvino_peer(files["float32"], "bf16")
        runners["OpenVINO int8 (static), sorted"] = openvino_peer(scratch / "static.onnx", "")
    return runners


def installed(name: str) -> bool:
    """Whether a peer is there; said once where it is not."""
    is_installed = importlib.util.find_spec(name.replace("-", "_")) is not None
    if not is_installed:
        print(f"{name} is not installed: its rows are left out", file=sys.stderr)
    return is_installed


def best(peer: Peer, sample: Ids, sizes: list[int]) -> int:
    """The batch size it is fastest with, on a sample; each is tried before it is timed, since memory is taken then."""

    def seconds(size: int) -> float:
        peer(sample, size)
        start = time.perf_counter()
        peer(sample, size)
        return time.perf_counter() - start

    return min(sizes, key=seconds)


def rectangles(ids: Ids, size: int) -> Iterator[tuple[list[int], dict[str, np.ndarray[Any, Any]]]]:
    """Rows of similar length, padded, and which they are."""
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        longest = max(len(ids[i]) for i in rows)
        padded, mask = np.zeros((2, len(rows), longest), np.int64)
        for row, i in enumerate(rows):
            padded[row, : len(ids[i])], mask[row, : len(ids[i])] = ids[i], 1
        yield rows, {"input_ids": padded, "attention_mask": mask, "token_type_ids": np.zeros_like(mask)}


def transformers_peer(place: Path, device: str, dtype: str) -> Peer:
    """transformers, with the mean and the normalising that make vectors of states."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(place, dtype=getattr(torch, dtype)).to(device).eval()

    @torch.no_grad()
    def run(ids: Ids, size: int) -> Vectors:
        outputs = []
        for rows, inputs in rectangles(ids, size):
            on = {name: torch.from_numpy(value).to(device, non_blocking=True) for name, value in inputs.items()}
            states = model(**on).last_hidden_state.float()
            mask = on["attention_mask"][..., None]
            outputs.append((rows, torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)))
        return ordered(((rows, vectors.cpu().numpy()) for rows, vectors in outputs), len(ids))

    return run


def ordered(parts: Any, count: int) -> Vectors:
    """Rows back in their order."""
    rows, vectors = zip(*parts, strict=True)
    in_order = np.empty((count, vectors[0].shape[1]), np.float32)
    in_order[np.concatenate(rows)] = np.concatenate(vectors)
    return in_order


def runtime_peer(path: Path) -> Peer:
    """ONNX Runtime."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    onnxruntime: Any = importlib.import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = {i.name for i in session.get_inputs()}

    def run(ids: Ids, size: int) -> Vectors:
        return ordered(
            ((rows, session.run(None, {n: g[n] for n in names})[0]) for rows, g in rectangles(ids, size)), len(ids)
        )

    return run


def openvino_peer(path: Path, precision: str) -> Peer:
    """OpenVINO, several requests at a time."""
    openvino: Any = importlib.import_module("openvino")
    settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "PERFORMANCE_HINT": "THROUGHPUT"}
    hint = {"INFERENCE_PRECISION_HINT": precision} if precision else {}
    model = openvino.Core().compile_model(str(path), "CPU", settings | hint)
    names = {i.get_any_name() for i in model.inputs}

    def run(ids: Ids, size: int) -> Vectors:
        outputs: list[tuple[list[int], Vectors]] = []
        queue = openvino.AsyncInferQueue(model)
        queue.set_callback(lambda request, rows: outputs.append((rows, request.get_output_tensor(0).data.copy())))
        for rows, g in rectangles(ids, size):
            queue.start_async({n: g[n] for n in names}, rows)
        queue.wait_all()
        return ordered(outputs, len(ids))

    return run


def calibrated(source: Path, target: Path, ids: Ids) -> None:
    """The graph with integers of fixed scales, as OpenVINO likes it."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    tools: Any = importlib.import_module("onnxruntime.quantization")

    class Reader(tools.CalibrationDataReader):
        def __init__(self) -> None:
            names = {i.name for i in importlib.import_module("onnx").load(str(source)).graph.input}
            self.rest = ({n: g[n] for n in names} for _, g in rectangles(ids, 8))

        def get_next(self) -> Any:
            return next(self.rest, None)

    tools.quantize_static(
        str(source),
        str(target),
        Reader(),
        quant_format=tools.QuantFormat.QDQ,
        per_channel=True,
        weight_type=tools.QuantType.QInt8,
        op_types_to_quantize=["MatMul", "Gemm"],
    )


if __name__ == "__main__":
    main()
