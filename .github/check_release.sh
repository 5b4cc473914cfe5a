#!/usr/bin/env bash
# Builds the source distribution and the wheel, and tries the wheel as someone does who has nothing else:
#     .github/check_release.sh [FOLDER]
#
# FOLDER, by default dist, gets both. PYTHON is the interpreter, by default python3, and TORCH the requirement of PyTorch, by
# default torch==2.13.0 of https://download.pytorch.org/whl/cpu, since the index's own build brings gigabytes of CUDA.
set -euo pipefail
python=${PYTHON:-python3} torch=${TORCH:-torch==2.13.0} folder=${1:-dist}
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_EXTRA_INDEX_URL=${PIP_EXTRA_INDEX_URL-https://download.pytorch.org/whl/cpu}
checkout=$(cd "$(dirname "$0")/.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

step() { printf '\n== %s\n' "$*"; }

fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

environment() { # NAME: a new environment; prints the folder of its programs
  "$python" -m venv "$scratch/$1"
  echo "$scratch/$1/bin"
}

step "the version"
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$checkout/src/shoestring/version.py")
echo "$version"
grep -q "^## $version — " "$checkout/CHANGELOG.md" || fail "CHANGELOG.md has no dated heading for $version"
if [ "${GITHUB_REF_TYPE:-}" = tag ] && [ "$GITHUB_REF_NAME" != "v$version" ]; then
  fail "the tag is $GITHUB_REF_NAME, and the version $version"
fi

step "build"
tools=$(environment tools)
"$tools/pip" install --quiet build twine
rm -rf "$folder"
"$tools/python" -m build --outdir "$folder" "$checkout"
"$tools/twine" check --strict "$folder"/*
folder=$(cd "$folder" && pwd)
wheel=$folder/shoestring-$version-py3-none-any.whl
[ -f "$wheel" ] && [ -f "$folder/shoestring-$version.tar.gz" ] || fail "the names in $folder differ: $(ls "$folder")"

cd "$scratch" # where no checkout can be imported
step "the wheel with its requirements and those of a recipe"
full=$(environment full)
"$full/pip" install --quiet "$torch" "$wheel[temporal]"
"$full/pip" check
"$full/shoestring" --version
"$full/shoestring" plan temporal --on kaggle-t4
"$full/python" -c "import shoestring; print(repr(shoestring.estimate('temporal', on='t4')))"

step "the wheel without torch"
light=$(environment light)
"$full/python" - > requirements.txt << 'PYTHON'
import importlib.metadata

lines = importlib.metadata.requires("shoestring")
print(*(line for line in lines if "extra ==" not in line and not line.startswith("torch")), sep="\n")
PYTHON
"$light/pip" install --quiet --requirement requirements.txt
"$light/pip" install --quiet --no-deps "$wheel"
for command in --help --version targets recipes; do
  "$light/shoestring" "$command" > output.txt || fail "shoestring $command fails without torch"
  head -n 3 output.txt
done
for command in "plan temporal --on kaggle-t4" "train temporal --run run"; do
  status=0
  # shellcheck disable=SC2086  # words of a command
  "$light/shoestring" $command > output.txt 2> errors.txt || status=$?
  cat errors.txt
  [ "$status" = 2 ] || fail "shoestring $command ends with status $status without torch, not 2"
  grep -q "^error: torch is not installed" errors.txt || fail "the error of shoestring $command does not name torch"
  grep -q "^hint: pip install 'torch" errors.txt || fail "the error of shoestring $command has no command to install torch"
  ! grep -q Traceback errors.txt || fail "shoestring $command shows a traceback without torch"
done

step "good: $(cd "$folder" && echo *)"
