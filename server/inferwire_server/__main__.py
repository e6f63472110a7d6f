"""The console script. A bare install has the client only; then this says what is missing."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line; returns the exit status."""
    try:
        from inferwire_server.cli import run
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        if missing.startswith("inferwire"):
            raise
        sys.stderr.write(
            f"inferwire: the command line needs the package {missing!r}, which this install lacks.\n"
            "Install a server with it:  pip install 'inferwire[cpu]'  (or 'inferwire[server]' without an engine)\n"
        )
        return 2
    return run()


if __name__ == "__main__":
    raise SystemExit(main())
