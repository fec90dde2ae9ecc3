#!/bin/sh
# Installs into /opt/omnistage what a stage depends on; a build of Dockerfile.stage runs it.
#
#   stage-packages.sh EXTRAS           all of it
#   stage-packages.sh EXTRAS PATTERN   packages whose names begin so, without what they depend on
#
# EXTRAS are names of pyproject.toml, separated by commas. Settings of pip reach uv, which reads none.
set -eu
cd "$(dirname "$0")"
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT

setting() { [ ! -f /etc/pip.conf ] || sed -n "s/^$1 *= *//p" /etc/pip.conf; }
index=$(setting index-url)
more=$(setting extra-index-url)
[ -z "$index" ] || export UV_DEFAULT_INDEX="$index"
[ -z "$more" ] || export UV_INDEX="$more"
[ ! -f /run/build-ca.crt ] || export SSL_CERT_FILE=/run/build-ca.crt

python3 -m pip install --quiet --target "$scratch" uv==0.13.9
uv() { "$scratch/bin/uv" "$@"; }
[ -d /opt/omnistage ] ||
    uv venv --no-python-downloads --python python3 --system-site-packages /opt/omnistage
install() {
    uv pip install --python /opt/omnistage --compile-bytecode --link-mode=copy --no-build "$@"
}

# shellcheck disable=SC2046 # words are what is meant
set -- "${2:-}" --override overrides.txt --extra stage \
    $(echo "$1" | sed 's/[^,]\{1,\}/--extra &/g; s/,/ /g')
pattern=$1
shift
if [ -z "$pattern" ]; then
    install "$@" --requirements pyproject.toml
    exit
fi
uv pip compile --quiet --no-header --no-annotate --python /opt/omnistage --no-build "$@" pyproject.toml >"$scratch/all.txt"
grep -E "^($pattern)" "$scratch/all.txt" >"$scratch/some.txt" || exit 0
install --no-deps --requirements "$scratch/some.txt"
