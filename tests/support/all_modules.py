"""Import every module of bertree, and do what every command does: processes that are forked then start at once."""

import gc
import importlib
import pkgutil
from contextlib import redirect_stdout
from typing import Any

gc.disable()  # until all is imported

import bertree  # noqa: E402
from bertree.cli.main import app  # noqa: E402
from bertree.report import html  # noqa: E402
from tests.support import quick  # noqa: E402
from tests.support.command import make_tree  # noqa: E402

OURS = ("tests.support.runs", "tests.support.killing", "tests.kill.trial")
OTHERS = ("faiss", "jinja2", "rich.table", "rich.progress")
OTHERS += ("numpy.ma", "numpy.ctypeslib", "zoneinfo", "rich._emoji_codes", "torch.profiler")
# Ranks import PyTorch's compiler with these, which takes a process more than a second.
OTHERS += ("torch.distributed.fsdp", "torch.distributed.tensor", "torch._dynamo")

names = [module.name for module in pkgutil.walk_packages(bertree.__path__, "bertree.")]
for name in (*(name for name in names if not name.endswith("__main__")), *OURS, *OTHERS):
    importlib.import_module(name)
tree: Any = make_tree(app)
dict(tree.commands)  # builds every verb
with redirect_stdout(None):
    tree(["info", "--json"], standalone_mode=False)
for name in html._environment().list_templates():
    html._environment().get_template(name)
quick.skip_syncs()
quick.keep_for_good()
