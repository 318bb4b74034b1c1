# One image for every process of Baton; which one it runs is said by its command.
#
#   docker build --target cpu  -t baton:0.1.0 .
#   docker build --target cuda -t baton:0.1.0-cuda .
#
# The two differ in torch's build and in NIXL. Neither has a compiler: nothing is compiled at run
# time. CUDA comes with torch, so both start from the same slim base; the node brings the driver.

ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS builder
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_CONSTRAINT=/src/constraints.txt \
    PIP_PYTHON=/opt/baton/bin/python
WORKDIR /src
# All versions are those of constraints.txt. Without pip of its own: what runs installs nothing.
RUN python -m venv --without-pip /opt/baton
# Dependencies come first, by building what has no code yet: they outlive changes of it.
COPY pyproject.toml constraints.txt README.md LICENSE ./

FROM builder AS builder-cpu
# A package index of torch's builds for CPUs alone, as its own site names it. Empty: whatever build
# the default index has, which works too, and may bring CUDA's libraries.
ARG TORCH_INDEX=
# hadolint ignore=DL3013
RUN if [ -n "${TORCH_INDEX}" ]; then \
      pip install --no-deps --index-url "${TORCH_INDEX}" torch; \
    fi; \
    pip install '.[serve,planner]'
COPY . .
RUN pip install --no-deps --force-reinstall .

FROM builder AS builder-cuda
# hadolint ignore=DL3013
RUN pip install '.[serve,planner,nixl]'
COPY . .
RUN pip install --no-deps --force-reinstall .

FROM ${PYTHON_IMAGE} AS runtime
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Baton" \
      org.opencontainers.image.description="LLM serving with prefill and decode split into separate gRPC services" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# Nothing is written but below /tmp, so the root file system may be read-only.
ENV PATH=/opt/baton/bin:${PATH} \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
RUN groupadd --gid 10001 baton \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin baton
WORKDIR /tmp
USER 10001:10001

FROM runtime AS cuda
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=builder-cuda /opt/baton /opt/baton

# The last stage is what a build without --target makes.
FROM runtime AS cpu
COPY --from=builder-cpu /opt/baton /opt/baton
