# The sandbox's image with further packages: a layer on top of the image that is there already, so that only what is new
# is downloaded, compiled and stored.
#
# Built by `agent-tools image build --flavour ...` or `--package ...` (or on first use). All that the image below has
# stays in its version. pip and apt work in the builder stages only; pip is the wheel from which the base image's Python
# makes virtual environments. Debian packages are installed on the base image, and what that wrote is copied.

ARG BASE_IMAGE
ARG STACK_IMAGE

FROM ${BASE_IMAGE} AS pip
LABEL agent_tools.stage=builder
RUN mkdir /build && find / -xdev -name 'pip-*.whl' -exec cp {} /build/pip.whl \; && test -s /build/pip.whl

FROM ${BASE_IMAGE} AS debian
LABEL agent_tools.stage=builder
ARG DEBIAN_MIRROR
ARG NPM_CONFIG_REGISTRY
COPY ca-bundle.crt debian-packages.txt debian_packages.sh npm-packages.txt npm_packages.py /build/
RUN sh /build/debian_packages.sh && python3 /build/npm_packages.py

FROM ${STACK_IMAGE} AS builder
LABEL agent_tools.stage=builder
USER 0:0
WORKDIR /build
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore PYTHONDONTWRITEBYTECODE=1
ENV UV_INDEX_STRATEGY=unsafe-best-match UV_LINK_MODE=copy UV_NO_CACHE=1
COPY --from=pip /build/pip.whl /build/pip.whl
COPY ca-bundle.crt uv.lock extra-requirements.txt /build/
# A flavour's lock has hashes and is complete, and uv is faster with it; what users name has neither, and must fit what is
# there: pip skips that, uv would install it twice. Packages stay whole: some import from their own tests (`tables` does).
RUN set -eu; \
    if [ -s /build/ca-bundle.crt ]; then export PIP_CERT=/build/ca-bundle.crt SSL_CERT_FILE=/build/ca-bundle.crt; fi; \
    pip="env PYTHONPATH=/build/pip.whl /opt/kernel/bin/python -m pip"; \
    install="install --no-compile --only-binary :all:"; \
    if grep -q -- '--hash=' /build/extra-requirements.txt; then \
        $pip $install --target /build/uv --require-hashes --no-deps -r /build/uv.lock; \
        UV_INDEX="${PIP_EXTRA_INDEX_URL:-}" UV_INSECURE_HOST="${PIP_TRUSTED_HOST:-}" /build/uv/bin/uv pip install \
            --python /opt/kernel/bin/python --prefix /build/packages --no-build \
            ${PIP_INDEX_URL:+--default-index "$PIP_INDEX_URL"} --require-hashes --no-deps -r /build/extra-requirements.txt; \
        rm -f /build/packages/.lock; \
    else \
        $pip list --format=freeze > /build/constraints.txt; \
        $pip $install --prefix /build/packages -c /build/constraints.txt -r /build/extra-requirements.txt; \
    fi; \
    mkdir -p /build/packages/bin; \
    for ffmpeg in /build/packages/lib/python3*/site-packages/imageio_ffmpeg/binaries/ffmpeg-*; do \
        if [ -x "$ffmpeg" ]; then ln -s "/opt/kernel${ffmpeg#/build/packages}" /build/packages/bin/ffmpeg; fi; \
    done; \
    /opt/kernel/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash \
        -s /build/packages -p /opt/kernel /build/packages

FROM ${STACK_IMAGE}
COPY --from=debian /build/files /
COPY --from=builder /build/packages /opt/kernel
ARG VERSION=unknown
LABEL org.opencontainers.image.version="${VERSION}"
