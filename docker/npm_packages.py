"""Lays the packages of npm that /build/npm-packages.txt names, each a line of name, version and SHA-512, below
/build/files/usr/share/nodejs, where Debian's Node.js looks for modules. npm itself is not needed.
"""

import base64
import hashlib
import io
import os
import pathlib
import ssl
import sys
import tarfile
import urllib.request

BUILD = pathlib.Path(sys.argv[1] if sys.argv[1:] else "/build")
MODULES = BUILD / "files" / "usr" / "share" / "nodejs"
REGISTRY = os.environ.get("NPM_CONFIG_REGISTRY") or "https://registry.npmjs.org"
TIMEOUT = 120.0  # seconds

trust = ssl.create_default_context()
if (BUILD / "ca-bundle.crt").stat().st_size:
    trust.load_verify_locations(BUILD / "ca-bundle.crt")
for line in (BUILD / "npm-packages.txt").read_text().splitlines():
    name, version, digest = line.split()
    url = f"{REGISTRY.rstrip('/')}/{name}/-/{name}-{version}.tgz"
    with urllib.request.urlopen(url, timeout=TIMEOUT, context=trust) as answer:
        data = answer.read()
    if digest != "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode():
        sys.exit(f"npm_packages.py: {url} is not as it was pinned")
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            member.name = member.name.partition("/")[2]
            if member.isfile() and member.name and not member.name.endswith((".map", ".iife.js", ".umd.cjs")):
                archive.extract(member, MODULES / name, filter="data")
