#!/bin/sh
# Install Laggard with its development tools into .venv. One line per stage; pip's output is in a log.
# Variables: PYTHON (interpreter) and EXTRAS (extras of pyproject.toml).
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
    fail "$1 (complete log: $LOG)"
}

"$PYTHON" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null ||
    fail "Laggard needs Python 3.11 to 3.13; $PYTHON is not: run make PYTHON=/path/to/python3.11"
"$PYTHON" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "This Python has no venv module: on Debian, run apt-get install python3-venv"

echo "install 1/3: virtual environment in .venv ($("$PYTHON" --version))"
"$PYTHON" -m venv --clear .venv || fail "Remove .venv or free disk space, then repeat"

torch=$(grep '^torch==' constraints.txt)
if [ -e /proc/driver/nvidia/version ]; then
    echo "install 2/3: $torch for NVIDIA GPUs (several gigabytes, takes minutes)"
    $PIP install -c constraints.txt "$torch" >"$LOG" 2>&1 ||
        fail_with_log "Check the network and the disk space, then repeat"
else
    echo "install 2/3: $torch for processors (no NVIDIA GPU here)"
    # If this index cannot be reached, the default index has the same version, built with CUDA.
    $PIP install --retries 0 --timeout 10 --no-deps --index-url "$CPU_INDEX" "$torch" >"$LOG" 2>&1 ||
        $PIP install -c constraints.txt "$torch" >>"$LOG" 2>&1 ||
        fail_with_log "Check the network and the disk space, then repeat"
fi

echo "install 3/3: laggard and its dependencies (about 150 packages)"
$PIP install -c constraints.txt -e ".[$EXTRAS]" >>"$LOG" 2>&1 ||
    fail_with_log "Check the network; behind a proxy or a mirror, set PIP_INDEX_URL"
touch .venv/installed
