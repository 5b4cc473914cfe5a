#!/usr/bin/env bash
# Makes a virtual environment of one of the stacks beside this file, with the project in it:
#     constraints/environment.sh STACK FOLDER
#
# The packages lie once for all clones in ~/.cache/shoestring/stacks, in a folder named after the digest of the stack's
# file; FOLDER refers to them and adds the clone. A stack's file lists every package, so pip resolves nothing: PyTorch's
# default wheel comes without its nvidia-* packages (1.2 GB instead of 4.6) and computes on the CPU (stub_cuda.py).
set -euo pipefail
stack=$1 folder=$2
here=$(cd "$(dirname "$0")" && pwd)
file=$here/$stack.txt
[ -f "$file" ] || { echo "no stack is named $stack; there are: $(cd "$here" && ls ./*.txt | sed 's,./\(.*\).txt,\1,' | xargs)" >&2; exit 2; }

python() { # the first that runs, of those on the PATH and pyenv's
  local wanted candidate
  wanted=$(grep -om1 'Python 3\.[0-9]*' "$file" | cut -d' ' -f2)
  for candidate in ${PYTHON:-} "python$wanted" "$HOME"/.pyenv/versions/"$wanted".*/bin/python; do
    if "$candidate" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$wanted')" 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "the stack $stack needs Python $wanted, which is not on the PATH; hint: install it, or name it: PYTHON=FILE" >&2
  return 1
}

interpreter=$(python)
digest=$( (cat "$file" "$here/stub_cuda.py" "$0"; "$interpreter" --version) | sha256sum | cut -c1-12)
packages=${XDG_CACHE_HOME:-$HOME/.cache}/shoestring/stacks/$stack-$digest
mkdir -p "$(dirname "$packages")"
(
  flock 9 # one clone installs, others wait
  if [ ! -e "$packages/complete" ]; then
    rm -rf "$packages"
    "$interpreter" -m venv "$packages"
    "$packages/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --requirement "$file"
    "$packages/bin/python" -m pip install --quiet --disable-pip-version-check 'hatchling>=1.25' 'editables>=0.5'
    "$packages/bin/python" "$here/stub_cuda.py"
  fi
  touch "$packages/complete"
) 9> "$packages.lock"
# A stack is about 3 GB: remove those that no clone has asked for in a month.
for unused in $(find "$(dirname "$packages")" -mindepth 2 -maxdepth 2 -name complete -mtime +30); do
  rm -rf "$(dirname "$unused")" "$(dirname "$unused").lock"
done

rm -rf "$folder"
"$interpreter" -m venv --without-pip "$folder"
site=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$packages/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$site/stack.pth"
ln -s "$packages/bin/ruff" "$folder/bin/" # which mkdocstrings calls
"$packages/bin/python" -m pip --python "$folder/bin/python" install --quiet --disable-pip-version-check --no-deps \
  --no-build-isolation --editable "$(dirname "$here")"
