#!/usr/bin/env bash
# What a GPU shows in ten minutes on a machine where nothing can be downloaded.
#
#   benchmarks/gpu/first_minutes.sh [--out FOLDER] [--seconds N] [--packages FOLDER] [--python PYTHON] [PART ...]
#
# Needs Python with a CUDA build of PyTorch, and the packages of the recipes; those that the machine lacks come in FOLDER
# (benchmarks/gpu/packages.sh). Parts run in the order of their value, each in a process of its own with a time limit. A
# part that fails or hangs does not end the others. FOLDER gets PART.json and PART.log of each, first_minutes.json with
# all of them, and first_minutes.txt, the table of what to look at, which is printed at the end.
#
# The exit status is 0 when the table was written, whatever it says.
set -uo pipefail

ROOT=$(cd "$(dirname "$0")/../.." && pwd)
OUT=$PWD/first_minutes SECONDS_IN_ALL=570 PACKAGES=$ROOT/.gpu/site PYTHON=python3 PARTS=()
while [ $# -gt 0 ]; do
  case $1 in
    --out) OUT=$2; shift 2 ;;
    --seconds) SECONDS_IN_ALL=$2; shift 2 ;;
    --packages) PACKAGES=$2; shift 2 ;;
    --python) PYTHON=$2; shift 2 ;;
    -*) echo "error: unknown option $1" >&2; sed -n '4p' "$0" >&2; exit 2 ;;
    *) PARTS+=("$1"); shift ;;
  esac
done

mkdir -p "$OUT/tmp" && OUT=$(cd "$OUT" && pwd) || exit 2
rm -f "$OUT"/*.json "$OUT"/*.log "$OUT"/parts.tsv
END=$((SECONDS + SECONDS_IN_ALL))
export PYTHONPATH=$OUT/tmp/metadata:$PACKAGES:$ROOT/src:$ROOT PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
export PYTHONPYCACHEPREFIX=$OUT/tmp/pycache
cd "$ROOT" || exit 2
# Recipes are found by the metadata of an installation, and this copy is not installed.
rm -rf "$OUT/tmp/metadata" && "$PYTHON" -m benchmarks.gpu.metadata "$OUT/tmp/metadata"
WHOLE_RUNS=(vqa "chart, 4 generations" legal finetune cloud)
IS_LARGE='import sys, torch; sys.exit(torch.cuda.mem_get_info()[1] < 64 * 2**30)'

# run PART LIMIT COMMAND ...: at most LIMIT seconds, and not longer than until the end. `{}` stands for PART.json.
run() {
  local part=$1 limit=$2 started=$SECONDS status
  shift 2
  if [ ${#PARTS[@]} -gt 0 ] && [[ " ${PARTS[*]} " != *" $part "* ]]; then return; fi
  if [ $((END - SECONDS)) -lt "$limit" ]; then limit=$((END - SECONDS)); fi
  if [ "$limit" -lt 10 ]; then
    printf '%s\t%s\t%s\n' "$part" "not run: no time was left" 0 >> "$OUT/parts.tsv"
    return
  fi
  mkdir -p "$OUT/tmp/$part"
  TMPDIR=$OUT/tmp/$part timeout --kill-after 5 "$limit" "${@//\{\}/$OUT/$part.json}" > "$OUT/$part.log" 2>&1
  status=$?
  # Processes that a part has started in sessions of their own have its temporary folder in their arguments.
  pkill -KILL -f "$OUT/tmp/$part/" && sleep 1
  case $status in
    0) status=finished ;;
    124 | 137) status="stopped after $limit s" ;;
    *) status="exit status $status" ;;
  esac
  printf '%s\t%s\t%s\n' "$part" "$status" $((SECONDS - started)) >> "$OUT/parts.tsv"
  echo "$part: $status, $((SECONDS - started)) s"
}

finish() {
  trap - EXIT TERM INT
  wait
  "$PYTHON" -m benchmarks.gpu.summary "$OUT" | tee "$OUT/first_minutes.txt"
  rm -rf "$OUT/tmp"
  exit 0
}
trap finish EXIT TERM INT

check_part() {
  run check 90 bash -c '"$0" -m shoestring check legal --set size=tiny --json > "{}"' "$PYTHON"
}
memory_parts() {
  run memory 175 "$PYTHON" -m benchmarks.gpu.memory --json {} --seconds 165
}
survival_parts() {
  run out_of_memory 60 "$PYTHON" -m benchmarks.gpu.out_of_memory --json {}
  run graphs 60 "$PYTHON" -m benchmarks.gpu.graphs --json {}
  run kills 200 env SHOESTRING_PROBE=0 "$PYTHON" -m benchmarks.gpu.kills --json {}
}
kernel_parts() {
  run determinism 100 "$PYTHON" -m benchmarks.gpu.determinism --json {} --seconds 80
  run convolutions 45 "$PYTHON" -m benchmarks.gpu.convolutions --json {}
}

# Two processes: on two GPUs over NCCL, on one they share it and exchange over gloo.
rank_parts() {
  run ranks 190 env SHOESTRING_PROBE=0 "$PYTHON" -m benchmarks.gpu.ranks --json {} --seconds 180
}

run machine 75 "$PYTHON" -m benchmarks.gpu.machine --json {}
# On a large GPU with many cores, what counts bytes or compares bits runs side by side: bytes are those of a process.
SIDE_BY_SIDE=no
if [ "$(nproc)" -ge 8 ] && "$PYTHON" -c "$IS_LARGE" 2> /dev/null; then SIDE_BY_SIDE=yes; fi
if [ "$SIDE_BY_SIDE" = yes ]; then
  memory_parts & survival_parts & { kernel_parts; check_part; } & rank_parts &
  wait
else
  memory_parts
  survival_parts
  kernel_parts
  check_part
fi
run time 150 "$PYTHON" -m benchmarks.gpu.time --json {} --kernels 30 --seconds 140
run finetune 150 "$PYTHON" -m benchmarks.gpu.finetune --json {} --seconds 100
run whole_run 160 "$PYTHON" -m benchmarks.plan.whole_run --json {} --seconds 110 --only "${WHOLE_RUNS[@]}"
if [ "$SIDE_BY_SIDE" = no ]; then rank_parts; fi
# For tests of this script: a part that hangs and one that crashes. They run only if they are named.
if [[ " ${PARTS[*]-} " == *" hang "* ]]; then run hang 12 sleep 1000; fi
if [[ " ${PARTS[*]-} " == *" crash "* ]]; then run crash 10 "$PYTHON" -c 'import os; print("about to crash"); os.abort()'; fi
