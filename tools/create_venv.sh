#!/usr/bin/env bash
# Creates a virtual environment at $1 with $PYTHON, or with the first Python from 3.11 on that runs.
set -euo pipefail
folder=$1

can_serve() { "$@" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3.14 python3}; do
    if can_serve "$candidate"; then
        "$candidate" -m venv --clear "$folder"
        exit 0
    fi
done

if [[ -n ${PYTHON:-} ]]; then
    echo "error: PYTHON=$PYTHON is no Python 3.11 or newer with the venv module." >&2
else
    echo "error: no Python 3.11 or newer with the venv module was found on PATH." >&2
    echo "Install one (Debian, Ubuntu: apt-get install python3 python3-venv), or name one: make PYTHON=/path/to/python3.12" >&2
fi
exit 1
