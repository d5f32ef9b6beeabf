#!/usr/bin/env bash
# The gate for a GPU runner: judges an implementation on a real device and on the CPU.
set -euo pipefail

usage() {
    cat << 'END'
usage: ci/gpu-gate.sh [options]

Judges an implementation on this machine's GPU and on its CPU, for bare metal, containers
and hosted runners alike. It looks whether the runner is fit, makes an environment with
the CuPy that fits the driver, runs the suite, looks whether the device's memory is back,
and decides.

  --impl NAME        what the suite's --impl takes (default: reference)
  --require LIST     the profiles that have to hold (default: core,grad,cuda)
  --report FILE      the report to write (default: gpu-report.jsonl); that of the CPU lies
                     beside it, as gpu-report-cpu.jsonl
  --install WHAT     also install this into the environment, as pip names it (may be
                     repeated): the package under test
  --python PATH      use this interpreter's environment, which has the suite, instead of
                     making one
  --suite-option OPT give this option to the suite (may be repeated)
  --help             print this and end

exit status: 0 conforms; 1 does not conform or was not judged; 2 the runner is not fit,
or the options are wrong, with one sentence on stderr
END
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
impl=reference require=core,grad,cuda report=gpu-report.jsonl
python='' install=() options=()

unfit() {
    printf 'This runner is not fit for the GPU gate: %s\n' "$1" >&2
    exit 2
}

while test $# -gt 0; do
    case $1 in
        --help | -h) usage && exit 0 ;;
        --impl | --require | --report | --install | --python | --suite-option)
            test $# -ge 2 || { echo "gpu-gate.sh: $1 needs a value." >&2 && exit 2; } ;;
        *) echo "gpu-gate.sh: there is no option $1; see --help." >&2 && exit 2 ;;
    esac
    case $1 in
        --impl) impl=$2 ;;
        --require) require=$2 ;;
        --report) report=$2 ;;
        --install) install+=("$2") ;;
        --python) python=$2 ;;
        --suite-option) options+=("$2") ;;
    esac
    shift 2
done

command -v python3 > /dev/null || unfit "there is no python3; install Python 3.11 or newer."
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    unfit "python3 is older than 3.11; install a newer one."

folder=$(mktemp -d "${TMPDIR:-/tmp}/gpu-gate.XXXXXXXX")
remove() { case $folder in */gpu-gate.????????) rm -rf -- "$folder" ;; esac; }
trap remove EXIT

python3 "$here/gpu_fitness.py" --facts "$folder/facts.json" || exit 2
extra=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["extra"])' \
    "$folder/facts.json")

if test -z "$python"; then
    python=$folder/environment/bin/python
    { python3 -m venv "$folder/environment" &&
        "$python" -m pip install -q "$here/..[conformance,$extra]" "${install[@]}"; } ||
        unfit "its environment could not be made; the lines above say why."
fi

# What a device has in use is one figure for all processes, so its cases run one by one.
run_suite() {
    local status=0
    "$python" -m pytest --pyargs sharedtensor_conformance -q -p no:cacheprovider \
        --impl="$impl" "$@" "${options[@]}" || status=$?
    test "$status" -le 1 || printf 'The run ended early, with status %s.\n' "$status"
}
on_the_cpu=${report%.jsonl}-cpu.jsonl
run_suite --device=cpu --report="$on_the_cpu" -n "$(nproc)"
run_suite --device=cuda --report="$report"

conforms=yes
python3 "$here/gpu_fitness.py" --compare "$folder/facts.json" || conforms=no
"$python" -m sharedtensor_conformance.cli gate "$on_the_cpu" "$report" \
    --require "$require" ||
    conforms=no
test "$conforms" = yes
