# The sandbox's image: CPython, IPython's kernel and the data stack, and nothing that compiles or escalates. pip lies in
# /opt/pip, on no path but that of sandboxes with a network by list; in all others /opt/no_pip says that it is not there.
#
# Built by `agent-tools image build` (or on first use), which sends this file, the lock, the fonts and the guest code as
# the build context, together with ca-bundle.crt (which may be empty). The CA bundle exists in the builder stage only.
# The labels' licence is that of what is ours; `agent-tools image sbom` lists all else. Further packages go into a
# layer on top: packages.dockerfile.

ARG BASE_IMAGE=python:3.13-slim-trixie

FROM ${BASE_IMAGE} AS builder
LABEL agent_tools.stage=builder
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
ENV UV_INDEX_STRATEGY=unsafe-best-match UV_LINK_MODE=copy UV_NO_CACHE=1
COPY ca-bundle.crt requirements.lock uv.lock /build/
# The lock leaves out debugpy (a debugger needs ptrace, which is refused), hence --no-deps. Folders named tests lose their
# tests and data alone: libraries import the rest of them (numpy.testing does).
RUN set -eu; \
    if [ -s /build/ca-bundle.crt ]; then export PIP_CERT=/build/ca-bundle.crt SSL_CERT_FILE=/build/ca-bundle.crt; fi; \
    python3 -m venv --without-pip /opt/kernel; \
    python3 -m venv /build/venv; \
    /build/venv/bin/pip install --no-compile --only-binary :all: --require-hashes --no-deps -r /build/uv.lock; \
    UV_INDEX="${PIP_EXTRA_INDEX_URL:-}" UV_INSECURE_HOST="${PIP_TRUSTED_HOST:-}" /build/venv/bin/uv pip install \
        --python /opt/kernel/bin/python --no-build ${PIP_INDEX_URL:+--default-index "$PIP_INDEX_URL"} \
        --require-hashes --no-deps -r /build/requirements.lock; \
    find /opt/kernel -path '*/tests/*' -type f \( -name 'test_*' -o ! -name '*.py' \) -delete
COPY no_pip.py session_pip.py /build/
RUN set -eu; \
    mkdir -p /opt/pip/bin; cp -r /build/venv/lib/python3*/site-packages/pip /build/venv/lib/python3*/site-packages/pip-*.dist-info /opt/pip; \
    cat /build/session_pip.py /opt/pip/pip/__main__.py > /build/main.py; mv /build/main.py /opt/pip/pip/__main__.py; \
    printf '#!/opt/kernel/bin/python\nimport runpy\nrunpy.run_module("pip", run_name="__main__")\n' > /opt/pip/bin/pip; \
    chmod 755 /opt/pip/bin/pip; ln -s pip /opt/pip/bin/pip3; \
    mkdir /opt/no_pip; cp /build/no_pip.py /opt/no_pip/pip.py; cp -d /opt/pip/bin/pip /opt/pip/bin/pip3 /opt/kernel/bin; \
    /opt/kernel/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/pip /opt/no_pip
COPY font_fallback.py matplotlibrc /build/
COPY modules /build/modules
COPY fonts /usr/share/fonts/agent_tools
RUN set -eu; \
    site=$(/opt/kernel/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
    echo /opt/guest > "$site/agent_tools_guest.pth"; \
    echo 'import os; os.getpid() != 1 and __import__("agent_tools_guest.packages").packages.add()' \
        >> "$site/agent_tools_guest.pth"; \
    cp /build/modules/*.py "$site"; \
    cat /build/font_fallback.py >> "$site/matplotlib/font_manager.py"; \
    cd "$site/matplotlib/mpl-data/stylelib"; \
    for style in seaborn-v0_8*; do cp "$style" "seaborn${style#seaborn-v0_8}"; done; \
    mkdir -p /opt/matplotlib/cache; cp /build/matplotlibrc /opt/matplotlib/; \
    /opt/kernel/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/kernel; \
    MPLCONFIGDIR=/opt/matplotlib/cache /opt/kernel/bin/python -c 'import matplotlib.font_manager'
COPY guest /opt/guest/agent_tools_guest
RUN /opt/kernel/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/guest

FROM ${BASE_IMAGE}
LABEL agent_tools.image=code_interpreter
# The last line: older runtimes give a tmpfs the mode of the folder below it, and some engines give it no owner but root.
RUN set -eu; \
    rm -rf /usr/local/lib/python3*/site-packages/* /usr/local/lib/python3*/ensurepip /usr/local/bin/pip* \
        /usr/lib/python3*/ensurepip /usr/lib/python3/dist-packages/* /usr/share/python-wheels /root/.cache; \
    for program in su sudo passwd chsh chfn chage expiry gpasswd newgrp mount umount pkexec unix_chkpwd; do \
        rm -f "/bin/$program" "/usr/bin/$program" "/sbin/$program" "/usr/sbin/$program"; \
    done; \
    find / -xdev -type f -perm /6000 -exec chmod a-s {} +; \
    mkdir -p /workspace /run/kernel /home/sandbox /mnt/data /home/user; \
    chmod 1777 /workspace /home/sandbox
COPY --from=builder /usr/share/fonts/agent_tools /usr/share/fonts/agent_tools
COPY --from=builder /opt/kernel /opt/kernel
COPY --from=builder /opt/matplotlib /opt/matplotlib
COPY --from=builder /opt/pip /opt/pip
COPY --from=builder /opt/no_pip /opt/no_pip
COPY datasets /opt/datasets
# After matplotlib has listed the fonts, which it would list again under each of these names.
COPY font_links.sh /tmp/
RUN sh /tmp/font_links.sh && rm /tmp/font_links.sh
# One Python, by whatever name: login shells find it first, and the base's own finds the same packages. The tables of
# users are links, which lead to files that PID 1 lays for the ids it runs as (guest/pid1/supervisor.py).
RUN set -eu; \
    base=$(readlink -f /opt/kernel/bin/python); \
    for name in python python3; do [ -e "/usr/local/bin/$name" ] || ln -s "$base" "/usr/local/bin/$name"; done; \
    site=$("$base" -I -c 'import site; print(site.getsitepackages()[0])'); \
    mkdir -p "$site" /etc/profile.d /usr/share/agent_tools /home/sandbox/.names; \
    /opt/kernel/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$site/agent_tools.pth"; \
    echo 'PATH="/opt/kernel/bin:$PATH"' > /etc/profile.d/agent_tools.sh; \
    for table in passwd group; do \
        cp "/etc/$table" /usr/share/agent_tools/; mv "/etc/$table" /home/sandbox/.names/; \
        ln -s "/home/sandbox/.names/$table" "/etc/$table"; \
    done
COPY --from=builder /opt/guest /opt/guest
# Here and not in the builder: what it notes of files are their times in this very image.
RUN HOME=/tmp/home /opt/kernel/bin/python -P -m agent_tools_guest bake && rm -rf /tmp/*
ARG BASE_NAME=unknown
ARG BASE_DIGEST=unknown
ARG VERSION=unknown
LABEL org.opencontainers.image.title="agent_tools code interpreter" \
    org.opencontainers.image.description="The sandbox of agent_tools: CPython, IPython's kernel and the data stack" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.base.name="${BASE_NAME}" \
    org.opencontainers.image.base.digest="${BASE_DIGEST}"
USER 10001:10001
WORKDIR /workspace
CMD ["/opt/kernel/bin/python", "-P", "-m", "agent_tools_guest"]
