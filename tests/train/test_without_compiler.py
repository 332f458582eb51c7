"""Commands that compile nothing do not import PyTorch's compiler."""

import shlex
import subprocess
import sys
from pathlib import Path

from tests.support import runs

PROGRAM = """
import shlex, sys
from bertree.__main__ import main
for line in sys.argv[1:]:
    sys.argv[1:] = shlex.split(line)
    try:
        main()
    except SystemExit as end:
        assert not end.code, end.code
assert "torch.optim" in sys.modules
print([name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in sys.modules])
"""


def test_pretraining_on_a_cpu_does_not_import_the_compiler(token_store: Path, tmp_path: Path) -> None:
    lines = []
    for family, optimizer in (("bert", "adamw"), ("xlnet", "muon")):
        given = ("--store", str(token_store), "--out", str(tmp_path / family), f"optim.name={optimizer}")
        given += ("phases.0.steps=2", "phases.1.steps=1")
        lines.append(shlex.join(["pretrain", str(runs.recipe(family, tmp_path)), *given]))
    done = subprocess.run([sys.executable, "-c", PROGRAM, *lines], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
