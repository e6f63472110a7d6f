#!/usr/bin/env bash
# Compiles requirements/*.txt from pyproject.toml; arguments go to `uv pip compile` (such as --upgrade).
set -euo pipefail
cd "$(dirname "$0")/.."

compile() {
    local lock=$1
    shift
    uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
        --output-file "requirements/$lock.txt" "$@" >/dev/null
}

# The widest set is solved first and binds the others, so that installing one over another never changes a version.
compile dev pyproject.toml --extra cpu --group dev --group build --constraints requirements/constraints.in "$@"
compile base pyproject.toml --constraints requirements/dev.txt "$@"
compile server pyproject.toml --extra server --constraints requirements/dev.txt "$@"
compile cpu pyproject.toml --extra cpu --constraints requirements/dev.txt "$@"
compile build --group build --constraints requirements/dev.txt "$@"
compile stubs --group stubs "$@"
compile checkov --group checkov "$@"
compile sbom --group sbom "$@"
