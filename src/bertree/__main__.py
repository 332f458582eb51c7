"""The command `bertree`, which is also `python -m bertree`."""

import os
import signal
import sys


def main() -> None:
    """Run the command line. Ctrl-C ends it without a traceback, also while it is still being imported."""
    try:
        interactive = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if interactive:
            signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # an exception could be lost in a foreign import
        from bertree.cli.main import main as run

        if interactive:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
