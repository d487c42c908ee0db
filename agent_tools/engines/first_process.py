"""The first process of a sandbox, the same on each engine: its command and its environment."""

from __future__ import annotations

from agent_tools.engines.isolation import Isolation
from agent_tools.engines.network import PackageIndex

GUEST_HOME = "/home/sandbox"
GUEST_SESSION = "/opt/session"


PYTHON = ["/opt/kernel/bin/python", "-P", "-m"]
COMMAND = [*PYTHON, "agent_tools_guest"]
ENVIRONMENT = {
    "PATH": "/opt/kernel/bin:/usr/local/bin:/usr/bin:/bin",
    "HOME": GUEST_HOME,
    "LANG": "C.UTF-8",
    "IPYTHONDIR": f"{GUEST_HOME}/.ipython",
    "MPLCONFIGDIR": f"{GUEST_HOME}/matplotlib",
    "MATPLOTLIBRC": "/opt/matplotlib/matplotlibrc",
    "PYTHONDONTWRITEBYTECODE": "1",
    "OMP_NUM_THREADS": "1",  # one OpenMP or BLAS thread per core would meet the pids limit on large machines
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
_PROXY = "http://127.0.0.1:3128"  # guest/proxy.py listens there
_CERTIFICATES = f"{GUEST_SESSION}/certificates.pem"
NETWORK_ENVIRONMENT = {
    "PATH": f"{GUEST_SESSION}/bin:/opt/pip/bin:{ENVIRONMENT['PATH']}",
    **{name: _PROXY for lower in ("http_proxy", "https_proxy", "all_proxy") for name in (lower, lower.upper())},
    **dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1,::1"),
    **dict.fromkeys(("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"), _CERTIFICATES),
    "PIP_CERT": _CERTIFICATES,
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_CACHE_DIR": "1",
    "PIP_NO_COMPILE": "1",
    "PIP_NO_INPUT": "1",
    "PIP_PROGRESS_BAR": "off",
    "PIP_RETRIES": "1",
}
"""Additional variables for an egress allowlist."""
CACHE_ENVIRONMENT = {
    "PIP_INDEX_URL": "http://pypi.org/simple/",
    "PIP_TRUSTED_HOST": "pypi.org files.pythonhosted.org",
    "PIP_DEFAULT_TIMEOUT": "120",  # the host first fetches a file that is not in the cache
}
"""Additional variables for a cache of packages on the host, which pip asks in plain HTTP
(runtime/egress/packages.py)."""


def environment(limits: Isolation) -> dict[str, str]:
    """Return the environment variables of the first process, which all others inherit."""
    network = NETWORK_ENVIRONMENT if limits.policy else {}
    cache = CACHE_ENVIRONMENT if limits.policy and limits.policy.packages_cache else {}
    index = _index_environment(limits.policy.index) if limits.policy and limits.policy.index else {}
    return {**ENVIRONMENT, **network, **cache, **index, **limits.env}


def _index_environment(index: PackageIndex) -> dict[str, str]:
    trusted = {"PIP_TRUSTED_HOST": str(index.target)} if index.url.startswith("http:") else {}
    return {"PIP_INDEX_URL": index.url, **trusted}
