"""The version of bertree, for the package (pyproject.toml reads it here) and for every module."""

__version__ = "0.2.0"
