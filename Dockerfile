# kernelwright on a CPU: the command line, workers and the leaderboard. docs/clusters.md says how to run it.
#   docker build -t kernelwright .
ARG BASE=debian:bookworm-slim
FROM ${BASE}

# A compiler for kernels, Python's headers for torch.compile, the sandbox, and a first process that passes signals on.
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        bubblewrap ca-certificates g++ python3 python3-dev python3-venv tini \
    && rm -rf /var/lib/apt/lists/*

ENV VIRTUAL_ENV=/opt/kernelwright
ENV PATH=/opt/kernelwright/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python3 -m venv "$VIRTUAL_ENV"

# Dependencies before sources: an edit of the sources repeats only the last steps.
WORKDIR /build
COPY constraints.txt ./
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
RUN pip install --no-deps --index-url "$TORCH_INDEX_URL" "$(grep '^torch==' constraints.txt)"
COPY pyproject.toml ./
ARG EXTRAS="web ray"
RUN python -c 'import sys, tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
        extras = [name for extra in sys.argv[1:] for name in project["optional-dependencies"][extra]]; \
        print(*project["dependencies"], *extras, sep="\n")' $EXTRAS > requirements.txt \
    && pip install --constraint constraints.txt --requirement requirements.txt

COPY README.md LICENSE ./
COPY kernelwright kernelwright
RUN pip install --no-deps . && rm -rf /build/*

# The store, the cache and the home of every user. A user of another number (docker run --user) may write there too.
RUN useradd --uid 1000 --home-dir /data --no-create-home kernelwright \
    && install --directory --owner kernelwright --group kernelwright --mode 1777 /data
ENV HOME=/data KERNELWRIGHT_STORE=/data/store.db KERNELWRIGHT_CACHE_DIR=/data/cache
USER 1000:1000
WORKDIR /data
VOLUME /data
EXPOSE 8765
ENTRYPOINT ["tini", "--", "kernelwright"]
CMD ["--help"]
