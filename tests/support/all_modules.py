"""Import every module of bertree, and do what every command does: processes that are forked then start at once."""

import importlib
import pkgutil
from contextlib import redirect_stdout

import bertree
from bertree.cli.main import app
from bertree.report import html
from tests.support.command import make_tree

for found in pkgutil.walk_packages(bertree.__path__, "bertree."):
    if not found.name.endswith("__main__"):
        importlib.import_module(found.name)
with redirect_stdout(None):
    make_tree(app)(["info", "--json"], standalone_mode=False)
for name in html._environment().list_templates():
    html._environment().get_template(name)
