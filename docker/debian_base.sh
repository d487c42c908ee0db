#!/bin/sh
# Makes the file system of a base image from Debian packages, for machines that reach a Debian mirror but no container
# registry. It stands in for python:3.13-slim-trixie: same distribution, same Python. Needs root and mmdebstrap.
#
#   docker/debian_base.sh base.tar && docker import base.tar agent-tools-base:trixie-apt
#
# DEBIAN_MIRROR names a mirror; the default is mmdebstrap's.
set -eu
target=${1:?usage: debian_base.sh TARGET.tar}
command -v mmdebstrap >/dev/null || { echo "debian_base.sh: mmdebstrap is missing: apt-get install -y mmdebstrap" >&2; exit 1; }
[ "$(id -u)" = 0 ] || { echo "debian_base.sh: needs root (mmdebstrap makes device nodes and owners)" >&2; exit 1; }
mmdebstrap --quiet --variant=essential \
    --include=apt,python3-minimal,python3-venv,libstdc++6,ca-certificates,tzdata \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --customize-hook='rm -f "$1/etc/resolv.conf" "$1/etc/hostname"' \
    trixie "$target" ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"}
