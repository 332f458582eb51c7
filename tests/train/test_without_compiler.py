"""Commands that compile nothing do not import PyTorch's compiler."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import runs

PROGRAM = """
import sys
from bertree.__main__ import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
assert "torch.optim" in sys.modules
print([name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in sys.modules])
"""


@pytest.mark.parametrize(("family", "optimizer"), [("bert", "adamw"), ("xlnet", "muon")])
def test_pretraining_on_a_cpu_does_not_import_the_compiler(
    family: str, optimizer: str, token_store: Path, tmp_path: Path
) -> None:
    recipe = runs.recipe(family, tmp_path)
    given = ("--store", str(token_store), "--out", str(tmp_path / "out"), f"optim.name={optimizer}")
    command = [sys.executable, "-c", PROGRAM, "pretrain", str(recipe), *given]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
