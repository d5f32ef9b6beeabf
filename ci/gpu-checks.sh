#!/usr/bin/env bash
# Every check of this project that needs a GPU, in one go and under ten minutes.
set -euo pipefail

usage() {
    cat << 'END'
usage: ci/gpu-checks.sh [--out FOLDER]

Runs what only a GPU can show: the gate on the reference, the rules that the simulated
device keeps, checked on the real one, the cost of a send beside that of the driver's
calls, PyTorch where TORCH=1 asks for it, and whether the device's memory is back.
Reports and figures are written to FOLDER (default: gpu-checks).

exit status: 0 all held; 1 something did not; 2 the runner is not fit (one sentence)
END
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=gpu-checks
case ${1-} in
    '') ;;
    --help | -h) usage && exit 0 ;;
    --out) out=${2:?gpu-checks.sh: --out needs a folder} ;;
    *) echo "gpu-checks.sh: there is no option $1; see --help." >&2 && exit 2 ;;
esac

extra=$(python3 "$here/gpu_fitness.py" --extra) || exit 2
mkdir -p "$out"
folder=$(mktemp -d "${TMPDIR:-/tmp}/gpu-checks.XXXXXXXX")
remove() { case $folder in */gpu-checks.????????) rm -rf -- "$folder" ;; esac; }
trap remove EXIT
python3 "$here/gpu_fitness.py" --facts "$folder/facts.json"

python=$folder/environment/bin/python
packages=("$here/..[conformance,$extra]")
test "${TORCH:-}" != 1 || packages+=(torch)
{ python3 -m venv "$folder/environment" &&
    "$python" -m pip install -q "${packages[@]}"; } || {
    echo "This runner is not fit for the GPU gate: its environment could not be made." >&2
    exit 2
}

failed=()
check() {
    printf '\n== %s\n' "$1"
    "${@:2}" || failed+=("$1")
}

check "the rules of the simulated device, on the real one" \
    timeout 60 "$python" "$here/gpu_rules.py" --device cuda:0 --out "$out/rules.json"
check "the cost of a send" \
    timeout 60 "$python" "$here/send_cost.py" --device cuda:0 --out "$out/cost.json"
check "the gate on the reference" \
    timeout 300 "$here/gpu-gate.sh" --python "$python" --report "$out/reference.jsonl"
if test "${TORCH:-}" = 1; then
    # A selection is no whole run, so this is shown and does not decide.
    printf '\n== PyTorch on the device (shown, does not decide)\n'
    timeout 150 "$python" -m pytest --pyargs sharedtensor_conformance -q \
        -p no:cacheprovider --impl=torch-cuda --device=cuda --profile=cuda \
        --report="$out/torch.jsonl" || true
fi
check "memory is back" \
    python3 "$here/gpu_fitness.py" --compare "$folder/facts.json"

test ${#failed[@]} -eq 0 || {
    printf '\nnot held: %s\n' "${failed[@]}"
    exit 1
}
