#!/bin/sh
# Installs the Debian packages that /build/debian-packages.txt names, in a builder stage, and lays what that wrote below
# /build/files: without what escalates, and with the tables of users where the sandbox's image has them.
set -eu
mkdir -p /build/files
[ -s /build/debian-packages.txt ] || exit 0
command -v apt-get >/dev/null || { echo "debian_packages.sh: the base image has no apt-get" >&2; exit 1; }
options="-o Dpkg::Options::=--path-exclude=/usr/share/man/* -o Dpkg::Options::=--path-exclude=/usr/share/locale/*
    -o Dpkg::Options::=--path-exclude=/usr/share/doc/* -o Dpkg::Options::=--path-include=/usr/share/doc/*/copyright"
if [ -s /build/ca-bundle.crt ]; then options="$options -o Acquire::https::CAInfo=/build/ca-bundle.crt"; fi
if [ -n "${DEBIAN_MIRROR:-}" ]; then
    # the suite of security updates lies beside it, as on most mirrors: .../debian and .../debian-security
    find /etc/apt -name '*sources*' -type f -exec sed -i -E "s#https?://(deb|security)\.debian\.org/debian#${DEBIAN_MIRROR%/}#" {} +
fi
touch /build/begun
sleep 1 # files are told from older ones by the time of their change
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2046,SC2086  (checked names, and options)
apt-get install -y -qq --no-install-recommends --no-upgrade $options -- $(cat /build/debian-packages.txt)

cd /
find . -xdev \( -path ./proc -o -path ./sys -o -path ./dev -o -path ./build -o -path ./tmp -o -path ./run \
    -o -path ./root -o -path ./var/lib/apt -o -path ./var/cache -o -path ./var/log \) -prune \
    -o ! -type d -cnewer /build/begun -print0 | tar --null --files-from=- --create --file=- | tar -x -p -C /build/files
cd /build/files
for program in su sudo passwd chsh chfn chage expiry gpasswd newgrp mount umount pkexec unix_chkpwd pip pip3; do
    rm -f "usr/bin/$program" "usr/sbin/$program"
done
find . -type f -perm /6000 -exec chmod a-s {} +
for table in passwd group; do
    if [ -e "etc/$table" ]; then
        mkdir -p usr/share/agent_tools home/sandbox/.names
        cp "etc/$table" usr/share/agent_tools/
        mv "etc/$table" home/sandbox/.names/
    fi
    rm -f "etc/$table-"
done
