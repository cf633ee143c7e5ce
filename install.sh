#!/bin/sh
# Installs Laggard with its development tools into .venv: one line a stage, pip's own words in a log.
# PYTHON names the interpreter, EXTRAS the extras of pyproject.toml.
set -u
cd "$(dirname "$0")" || exit 1
PYTHON=${PYTHON:-python3}
EXTRAS=${EXTRAS:-dev}
PIP=".venv/bin/pip --disable-pip-version-check --no-input"
LOG=.venv/install.log
CPU_INDEX=https://download.pytorch.org/whl/cpu

fail() {
    echo "install: failed. $1" >&2
    exit 1
}

fail_with_log() {
    tail -n 12 "$LOG" >&2
    fail "$1 (all of it: $LOG)"
}

"$PYTHON" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null ||
    fail "Laggard needs Python 3.11 to 3.13, and $PYTHON is another: make PYTHON=/path/to/python3.11"
"$PYTHON" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "This Python has no venv module: on Debian, apt-get install python3-venv"

echo "install 1/3: a virtual environment in .venv ($("$PYTHON" --version))"
"$PYTHON" -m venv --clear .venv || fail "Remove .venv, or free some disk space, and repeat"

torch=$(grep '^torch==' constraints.txt)
if [ -e /proc/driver/nvidia/version ]; then
    echo "install 2/3: $torch for NVIDIA GPUs, gigabytes that take minutes"
    $PIP install -c constraints.txt "$torch" >"$LOG" 2>&1 ||
        fail_with_log "Check the network and the disk space, and repeat"
else
    echo "install 2/3: $torch for processors (no NVIDIA GPU here)"
    # Where that index cannot be reached, the default one has this version too, with CUDA.
    $PIP install --retries 0 --timeout 10 --no-deps --index-url "$CPU_INDEX" "$torch" >"$LOG" 2>&1 ||
        $PIP install -c constraints.txt "$torch" >>"$LOG" 2>&1 ||
        fail_with_log "Check the network and the disk space, and repeat"
fi

echo "install 3/3: laggard and what it needs, about 150 packages"
$PIP install -c constraints.txt -e ".[$EXTRAS]" >>"$LOG" 2>&1 ||
    fail_with_log "Check the network; behind a proxy or a mirror, set PIP_INDEX_URL"
touch .venv/installed
