"""Import every module of bertree, and what typer needs for a command: processes that are forked then start at once."""

import importlib
import pkgutil

import typer

import bertree
from bertree.cli.main import app

for found in pkgutil.walk_packages(bertree.__path__, "bertree."):
    if not found.name.endswith("__main__"):
        importlib.import_module(found.name)
typer.main.get_command(app)
