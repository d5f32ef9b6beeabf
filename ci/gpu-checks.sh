#!/usr/bin/env bash
# The checks that need a GPU; see ci/gpu-checks.sh --help.
set -euo pipefail

unfit() {
    printf 'This runner is not fit for the GPU gate: %s\n' "$1" >&2
    exit 2
}

command -v python3 > /dev/null || unfit "there is no python3; install Python 3.11 or newer."
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    unfit "python3 is older than 3.11; install a newer one."
exec python3 "$(dirname "${BASH_SOURCE[0]}")/gpu_checks.py" "$@"
