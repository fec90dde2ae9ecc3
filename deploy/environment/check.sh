#!/usr/bin/env bash
# Runs every check that is not a test, all of them whatever fails, and shows the output of those
# that failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly bin=$PWD/.venv/bin
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
failed=()

check() {
    local name=$1 started=$SECONDS output
    shift
    if output=$("$@" 2>&1); then
        printf 'check: %-12s ok (%d s)\n' "$name" "$((SECONDS - started))"
    else
        failed+=("$name")
        printf 'check: %-12s FAILED\n%s\n' "$name" "$output"
    fi
}

check style "$bin/ruff" check
check format "$bin/ruff" format --check
check types "$bin/mypy"
check layers "$bin/lint-imports"
check protos "$bin/buf" lint protos
check spelling "$bin/codespell"
check docs env NO_MKDOCS_2_WARNING=1 "$bin/mkdocs" build --strict --site-dir "$site"

if ((${#failed[@]})); then
    printf 'check: failed: %s\n' "${failed[*]}" >&2
    exit 1
fi
