"""Build the release into dist/: `make dist`, or `python deploy/dist.py`.

The wheel and the source distribution are built from the files of a commit, so that nothing else gets into them. The
same commit gives the same bytes: the version of setuptools is that of constraints.txt, every file has the time of the
commit, and owners and order are fixed. The wheel must hold exactly the files of the package, and the licenses.
"""

import argparse
import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = "src/bertree"


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def build(commit: str, out: Path) -> list[Path]:
    """Build wheel and source distribution of a commit; return their paths."""
    time = git("log", "-1", "--format=%ct", commit)
    with tempfile.TemporaryDirectory() as name:
        source = Path(name, "source")
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(source, filter="data")
        environment = os.environ | {"SOURCE_DATE_EPOCH": time, "PIP_CONSTRAINT": str(source / "constraints.txt")}
        command = [sys.executable, "-m", "build", "--outdir", f"{name}/dist", str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            sys.exit(f"dist: {done.stdout}{done.stderr}")
        out.mkdir(parents=True, exist_ok=True)
        built = []
        for path in sorted(Path(name, "dist").iterdir()):
            content = path.read_bytes() if path.suffix == ".whl" else normalized(path.read_bytes(), int(time))
            built.append(out / path.name)
            built[-1].write_bytes(content)
    return built


def normalized(archive: bytes, time: int) -> bytes:
    """A source distribution with fixed times, owners, modes and order."""
    tarred, packed = io.BytesIO(), io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(gzip.decompress(archive))) as old,
        tarfile.open(fileobj=tarred, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = time, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=time, filename="") as file:
        file.write(tarred.getvalue())
    return packed.getvalue()


def wheel_problems(wheel: Path, commit: str) -> list[str]:
    """One line for each file of the package that the wheel lacks, has in addition, or has with other bytes."""
    lines = git("ls-tree", "-r", "--format=%(objectname) %(path)", commit, PACKAGE).splitlines()
    expected = {name.removeprefix("src/"): number for number, _, name in (line.partition(" ") for line in lines)}
    with zipfile.ZipFile(wheel) as files:
        held = {name for name in files.namelist() if ".dist-info/" not in name}
        licenses = {Path(name).name for name in files.namelist() if "/licenses/" in name}
        problems = [f"{name}: is not in the wheel" for name in sorted(expected.keys() - held)]
        problems += [f"{name}: is in the wheel, but git does not track it" for name in sorted(held - expected.keys())]
        for name in sorted(expected.keys() & held):
            if object_id(files.read(name)) != expected[name]:
                problems.append(f"{name}: differs from the commit")
    return problems + [f"{name}: is not among the licenses" for name in {"LICENSE", "NOTICE"} - licenses]


def object_id(content: bytes) -> str:
    """The name that git has for a file with this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description="Build wheel and source distribution of a commit.")
    parser.add_argument("--commit", default="HEAD")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the files")
    options = parser.parse_args()
    commit = git("rev-parse", options.commit)
    built = build(commit, options.out)
    if problems := wheel_problems(next(path for path in built if path.suffix == ".whl"), commit):
        sys.exit("\n".join(f"dist: {problem}" for problem in problems))
    for path in built:
        print(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}")


if __name__ == "__main__":
    main()
