"""A fuzzer of every file bertree reads and of its command line: `make fuzz`, or `python -m tests.fuzz --help`.

A case is a folder of samples, some changes of its files, and one command. A case fails if it breaks a promise: exit
code 0 with a right result or 2 with one line that names the culprit, no traceback, no hang, bounded memory, nothing
half-written, no silent difference. Failing cases are shrunk and written as reproducers.
"""
