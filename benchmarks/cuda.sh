#!/usr/bin/env bash
# The CUDA tests and the benchmark suite on one GPU, in under 6 minutes, without installing anything.
# usage: benchmarks/cuda.sh OUT [cpu]      (a second argument rehearses it on another device)
#
# Needs Python >= 3.11 with torch, pytest, pytest-timeout and hypothesis. Leaves in OUT: versions.txt,
# tests.txt, benchmarks.txt, cuda.json (copy it to benchmarks/results, then `python -m benchmarks
# report`), compile.txt. Its exit status is that of the first part that failed.
set -euo pipefail
out=${1:?usage: benchmarks/cuda.sh OUT [cpu]}
device=${2:-cuda}
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "$0")/.."
export PYTHONPATH=src PYTHONUNBUFFERED=1
python=${PYTHON:-python3}
status=0

run() {  # run SECONDS LOG COMMAND...
    local seconds=$1 log=$out/$2 code=0
    shift 2
    echo "== $*"
    timeout "$seconds" "$@" 2>&1 | tee "$log" || code=$?
    if [ "$status" = 0 ]; then status=$code; fi
}

versions='import sys, torch; print(sys.version, torch.__version__, sep="\n")
if torch.cuda.is_available(): print(torch.cuda.get_device_name(), torch.version.cuda)'
run 60 versions.txt "$python" -c "$versions"
# Only the files that have such tests are read: fewer needs, and 20 seconds less.
mapfile -t files < <(grep -rl --include='test_*.py' 'mark\.cuda' tests)
pytest=("$python" -m pytest -p no:cacheprovider -m "cuda and not slow" "${files[@]}")
run 90 tests.txt "${pytest[@]}"
# What is left of 350 seconds, but for a minute at the end.
run $((290 - SECONDS)) benchmarks.txt "$python" -m benchmarks --quick --device "$device" --out "$out" --no-pictures
# Last, as compiling may take long.
pytest=("$python" -m pytest -p no:cacheprovider -m "cuda and slow" "${files[@]}")
run $((350 - SECONDS)) compile.txt "${pytest[@]}"
exit "$status"
