"""`python -m bertree` is `bertree`."""

from bertree.cli.main import main

main()
