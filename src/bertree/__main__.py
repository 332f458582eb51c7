"""`python -m bertree` is `bertree`."""

from bertree.cli import main

main()
