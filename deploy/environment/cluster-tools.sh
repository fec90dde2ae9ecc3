#!/usr/bin/env bash
# Installs what the laboratory cluster of the tests needs of the system, and builds its programs, where
# that can be done: as root, where there is apt-get. Elsewhere it says what is missing; the tests then use
# the cluster that KUBECONFIG names, or are left out with OMNISTAGE_SKIP_CLUSTER=1.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# Program -> Debian package.
declare -rA packages=(
    [containerd]=containerd [runc]=runc [ip]=iproute2 [iptables]=iptables
    [buildah]=buildah [mmdebstrap]=mmdebstrap
)

[[ -z ${KUBECONFIG:-} && ${OMNISTAGE_SKIP_CLUSTER:-} != 1 ]] || exit 0
missing=()
for program in "${!packages[@]}"; do
    PATH=$PATH:/usr/sbin:/sbin command -v "$program" >/dev/null || missing+=("${packages[$program]}")
done
if ((${#missing[@]})); then
    if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
        printf 'cluster: missing: %s. Set KUBECONFIG to a cluster of yours, or OMNISTAGE_SKIP_CLUSTER=1.\n' \
            "${missing[*]}" >&2
        exit 0
    fi
    printf 'cluster: installing %s\n' "${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get install --yes --quiet=2 --no-install-recommends "${missing[@]}" >/dev/null 2>&1 || {
        apt-get update --quiet=2
        apt-get install --yes --quiet=2 --no-install-recommends "${missing[@]}" >/dev/null
    }
fi
# Ten minutes the very first time, which no test has.
(cd tests && ../.venv/bin/python -m cluster.laboratory build)
