# The gateway's image: `agent-tools serve` with MCP and PostgreSQL's driver, on the same base as the sandbox's image.
#
# `agent-tools image gateway` builds it, on a base that is pulled or made from Debian packages, with the CA bundle of
# this machine, which is not left in a layer; where a registry answers, `docker build -f docker/gateway.dockerfile .`
# does, in a checkout. How to run it: docs/deploy.md.

ARG BASE_IMAGE=python:3.13-slim-trixie

FROM ${BASE_IMAGE} AS builder
LABEL agent_tools.stage=builder
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
ENV UV_INDEX_STRATEGY=unsafe-best-match UV_LINK_MODE=copy UV_NO_CACHE=1
COPY docker/gateway.lock docker/uv.lock ca-bundle.cr[t] /build/
RUN set -eu; \
    if [ -s /build/ca-bundle.crt ]; then export PIP_CERT=/build/ca-bundle.crt SSL_CERT_FILE=/build/ca-bundle.crt; fi; \
    python3 -m venv --without-pip /opt/gateway; \
    python3 -m venv /build/venv; \
    /build/venv/bin/pip install --no-compile --only-binary :all: --require-hashes --no-deps -r /build/uv.lock; \
    UV_INDEX="${PIP_EXTRA_INDEX_URL:-}" /build/venv/bin/uv pip install --python /opt/gateway/bin/python --no-build \
        ${PIP_INDEX_URL:+--default-index "$PIP_INDEX_URL"} --require-hashes -r /build/gateway.lock
ARG COMPILE=.
COPY agent_tools /build/agent_tools
COPY docker /build/agent_tools/shipped/docker
COPY fonts /build/agent_tools/shipped/fonts
RUN set -eu; \
    site=$(/opt/gateway/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
    cp -r /build/agent_tools "$site/"; \
    mkdir "$site/agent_tools_sandbox.dist-info"; \
    printf 'Metadata-Version: 2.1\nName: agent-tools-sandbox\nVersion: 0\n' > "$site/agent_tools_sandbox.dist-info/METADATA"; \
    printf '%s\n' '[agent_tools.engines]' \
        'kubernetes = agent_tools.runtime.kubernetes_runtime:kubernetes_runtime' \
        'ray = agent_tools.runtime.ray_runtime:ray_runtime' \
        > "$site/agent_tools_sandbox.dist-info/entry_points.txt"; \
    printf '#!/opt/gateway/bin/python\nfrom agent_tools.cli import main\n\nmain()\n' > /opt/gateway/bin/agent-tools; \
    chmod 755 /opt/gateway/bin/agent-tools; \
    /opt/gateway/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash "$site/$COMPILE"

FROM ${BASE_IMAGE}
LABEL agent_tools.image=gateway
RUN rm -rf /usr/local/lib/python3*/site-packages/* /usr/local/lib/python3*/ensurepip /usr/local/bin/pip* \
    /usr/lib/python3*/ensurepip /usr/share/python-wheels /root/.cache; \
    find / -xdev -type f -perm /6000 -exec chmod a-s {} +
ENV PATH=/opt/gateway/bin:/usr/local/bin:/usr/bin:/bin HOME=/tmp LANG=C.UTF-8 PYTHONUNBUFFERED=1 \
    AGENT_TOOLS_GATEWAY_HOST=0.0.0.0 AGENT_TOOLS_GATEWAY_PORT=8080 AGENT_TOOLS_GATEWAY_NAMED_KEYS=true
USER 10002:10002
WORKDIR /tmp
EXPOSE 8080
HEALTHCHECK --interval=15s --timeout=5s --start-period=30s CMD ["python", "-c", \
    "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ['AGENT_TOOLS_GATEWAY_PORT'] + '/health', timeout=4)"]
ENTRYPOINT ["agent-tools"]
CMD ["serve"]
COPY --from=builder /opt/gateway /opt/gateway
ARG BASE_NAME=unknown
ARG BASE_DIGEST=unknown
ARG VERSION=unknown
LABEL org.opencontainers.image.title="agent_tools gateway" \
    org.opencontainers.image.description="OpenAI's API with a code interpreter of one's own" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.base.name="${BASE_NAME}" \
    org.opencontainers.image.base.digest="${BASE_DIGEST}"
