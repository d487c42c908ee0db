#!/bin/sh
# Makes the base image from Debian packages, for machines that reach a Debian mirror but no container registry.
#
#   docker/debian_base.sh            imports it as agent-tools-base:trixie
#
# It stands in for python:3.13-slim-trixie: same distribution, same Python. Needs root, mmdebstrap and a Docker engine.
# DEBIAN_MIRROR names a mirror; the default is the one mmdebstrap takes from the host's own sources.
set -eu
tag=${1:-agent-tools-base:trixie}
command -v mmdebstrap >/dev/null || { echo "debian_base.sh: mmdebstrap is missing: apt-get install -y mmdebstrap" >&2; exit 1; }
[ "$(id -u)" = 0 ] || { echo "debian_base.sh: needs root (mmdebstrap makes device nodes and owners)" >&2; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
echo "Making $tag from Debian packages (about half a minute)"
mmdebstrap --quiet --variant=essential \
    --include=python3-minimal,python3-venv,libstdc++6,ca-certificates,tzdata \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    trixie "$folder/base.tar" ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"}
docker import --change 'CMD ["python3"]' "$folder/base.tar" "$tag" >/dev/null
echo "Imported $tag"
