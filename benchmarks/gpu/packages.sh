#!/usr/bin/env bash
# Downloads what first_minutes.sh needs and a machine with PyTorch and transformers usually lacks, for Python 3.12 on Linux:
#
#   benchmarks/gpu/packages.sh [FOLDER]      by default .gpu/site, which first_minutes.sh finds
#
# About 15 MB: of bitsandbytes only the libraries for CUDA 13 are kept.
set -euo pipefail
FOLDER=${1:-.gpu/site}
WHEELS=$(mktemp -d)
trap 'rm -rf "$WHEELS"' EXIT
mkdir -p "$FOLDER"
PLATFORMS=()
for version in 2_28 2_24 2_17; do PLATFORMS+=(--platform "manylinux_${version}_x86_64"); done
python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp "${PLATFORMS[@]}" \
  --platform manylinux2014_x86_64 --dest "$WHEELS" \
  trl==1.16.0 datasets==5.2.0 dill==0.4.1 multiprocess==0.70.19 nupunkt==0.8.0 gguf==0.19.0 bitsandbytes==0.50.2
for wheel in "$WHEELS"/*.whl; do python3 -m zipfile -e "$wheel" "$FOLDER"; done
find "$FOLDER/bitsandbytes" -name 'libbitsandbytes_*.so' ! -name '*cuda13*' ! -name '*cpu*' -delete
du -sh "$FOLDER"
