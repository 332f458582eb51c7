"""Training throughput and trained weights of two source trees: a check for refactoring.

    python benchmarks/same_training.py BEFORE AFTER [CASE ...] [--device cuda]

BEFORE and AFTER are checkouts of this repository, for example a `git worktree` of an older commit and `.`. Each case of
`benchmarks.train` is run with both, in turn, each in a process of its own. Tokens/s should agree within noise, and the
digest of the weights after the last step must be the same. The exit code is 1 if it is not.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

CASES = ("bert-base-128-full", "bert-base-128-ragged", "bert-base-512-full", "bert-base-512-ragged")


def measure(arguments: list[str]) -> None:
    """Run `benchmarks.train` of the tree on the path, and print the digest of the weights too."""
    import benchmarks.train as train

    plain = train.timed

    def timed(side, given, machine):  # type: ignore[no-untyped-def]
        found = plain(side, given, machine)
        digest = hashlib.sha256()
        for name, parameter in sorted(side.loop.network.named_parameters()):
            digest.update(name.encode())
            digest.update(parameter.detach().float().cpu().numpy().tobytes())
        print("weights", digest.hexdigest()[:16], flush=True)
        return found

    train.timed = timed
    sys.argv[1:] = arguments
    train.main()


def run(root: Path, case: str, device: str, steps: int) -> tuple[int, str]:
    """Return tokens/s and the digest of the weights of a case."""
    more = [Path(part) for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    path = os.pathsep.join(str(part.resolve()) for part in (root / "src", root, *more))
    arguments = ("--device", device, "--cases", case, "--steps", str(steps), "--warm", str(steps // 5), "--only-ours")
    done = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "--measure", *arguments],
        env=os.environ | {"PYTHONPATH": path},
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    speed, digest = re.search(rf"{case}[^|]*\|\s*([\d,]+)", done.stdout), re.search(r"weights (\w+)", done.stdout)
    if speed is None or digest is None:
        raise SystemExit(f"{root}: {case} failed:\n{done.stdout}{done.stderr}")
    return int(speed[1].replace(",", "")), digest[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("cases", nargs="*", default=CASES)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=40, help="a fifth of them are not counted")
    given = parser.parse_args()
    print("| case | before, tokens/s | after | ratio | weights |\n| --- | --- | --- | --- | --- |")
    same = True
    for case in given.cases:
        (one, digest), (other, second) = (
            run(root, case, given.device, given.steps) for root in (given.before, given.after)
        )
        same &= digest == second
        verdict = f"the same ({digest})" if digest == second else "DIFFERENT"
        print(f"| {case} | {one:,} | {other:,} | {other / one:.4f} | {verdict} |", flush=True)
    raise SystemExit(0 if same else 1)


if __name__ == "__main__":
    if "--measure" in sys.argv[1:2]:
        measure(sys.argv[2:])
    else:
        main()
