# One file for both kinds of machine; docs/guides/deploy.md has the commands.
#   CPU:  docker build -t r3-grpo --build-arg PIP_EXTRA_INDEX_URL=INDEX .
#   CUDA: docker build -t r3-grpo:cuda --build-arg EXTRAS=vllm,cluster,lora .
# torch and vLLM bring CUDA's libraries along: the host needs the driver and NVIDIA's container toolkit, no CUDA image.
ARG PYTHON=3.12
FROM python:${PYTHON}-slim-bookworm

# Extras of pyproject.toml, without brackets.
ARG EXTRAS=cluster
# Further package index, such as that of torch's CPU build, which has no CUDA libraries (docs/start/install.md).
ARG PIP_EXTRA_INDEX_URL
# What model cards and summaries name as the code: --build-arg COMMIT=$(git rev-parse HEAD)
ARG COMMIT=

# Triton compiles with gcc while it runs; KubeRay's probes call wget; logs of git-installed data sets name git.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends build-essential ca-certificates git wget \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/r3-grpo
COPY . .
RUN PIP_EXTRA_INDEX_URL="${PIP_EXTRA_INDEX_URL}" \
    pip install --no-cache-dir --constraint constraints.txt ".[${EXTRAS}]"

RUN useradd --create-home --uid 1000 ray && mkdir /shared && chown ray /shared
USER 1000
WORKDIR /home/ray
ENV R3_GRPO_COMMIT=${COMMIT}

# A run's directory belongs on a volume: run.dir=/shared/runs.
VOLUME /shared
CMD ["r3-grpo", "--help"]
