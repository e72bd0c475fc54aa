#!/usr/bin/env bash
# The CUDA tests and the benchmark suite on one GPU, in under 6 minutes, without installing anything.
# usage: benchmarks/cuda.sh OUT [cpu]      (a second argument rehearses it on another device)
set -euo pipefail
out=${1:?usage: benchmarks/cuda.sh OUT [cpu]}
device=${2:-cuda}
cd "$(dirname "$0")/.."
mkdir -p "$out"
export PYTHONPATH=src
python=${PYTHON:-python3}
"$python" -c 'import sys, torch; print(sys.version); print(torch.__version__, torch.cuda.is_available())' \
    | tee "$out/versions.txt"
status=0
echo "== tests marked cuda"
timeout 120 "$python" -m pytest -q -m cuda tests -p no:cacheprovider 2>&1 | tee "$out/tests.txt" || status=$?
echo "== benchmarks"
timeout 220 "$python" -m benchmarks --quick --device "$device" --out "$out" 2>&1 \
    | tee "$out/benchmarks.txt" || status=$?
exit "$status"
