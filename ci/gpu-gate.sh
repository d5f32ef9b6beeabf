#!/usr/bin/env bash
# The gate for a GPU runner: judges an implementation on a real device and on the CPU.
#
#   ci/gpu-gate.sh [IMPLEMENTATION] [REQUIRED PROFILES] [REPORT]
#
# IMPLEMENTATION is what the suite's --impl takes (default: reference), REQUIRED PROFILES
# a list such as core,grad,cuda (default: core,cuda), REPORT the file to write (default:
# gpu-report.jsonl). The suite must be installed for the `python` that is first in PATH.
#
# Exit status: 0 conforms, 1 does not conform or was not judged, 2 the runner is not fit.
set -euo pipefail

implementation=${1:-reference}
required=${2:-core,cuda}
report=${3:-gpu-report.jsonl}

unfit() {
    printf 'This runner is not fit for the GPU gate: %s\n' "$1" >&2
    exit 2
}

command -v nvidia-smi > /dev/null ||
    unfit "there is no nvidia-smi, so no NVIDIA driver; run it on a machine with a GPU."
gpus=$(nvidia-smi --query-gpu=name --format=csv,noheader 2> /dev/null) ||
    unfit "nvidia-smi finds no working driver; install one that fits the kernel."
test -n "$gpus" || unfit "the driver sees no GPU; give the container one (--gpus all)."
test -w /dev/shm || unfit "/dev/shm cannot be written; mount a tmpfs there."
free=$(df --output=avail -k /dev/shm | tail -n 1)
test "$free" -ge 65536 ||
    unfit "/dev/shm has ${free// /} KiB free and needs 65536; use --shm-size=256m."

printf 'GPU: %s\n' "$gpus"
python -m pytest --pyargs sharedtensor_conformance --impl="$implementation" \
    --device=cpu --device=cuda --report="$report" -q -p no:cacheprovider || true
shared-tensor-spec gate "$report" --require "$required" || exit 1
