# leval-harness on a CPU: docker build -t leval . ; docs/how-to/install.md has the commands.
FROM python:3.11-slim

# The CPU build of torch; `--build-arg TORCH=torch` takes the one with GPU libraries. INDEX has it.
ARG TORCH=torch==2.13.0+cpu
ARG INDEX=

WORKDIR /src
RUN python -m venv /opt/leval-harness
ENV PATH=/opt/leval-harness/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN pip install ${INDEX:+--extra-index-url "$INDEX"} "$TORCH"
COPY . .
RUN pip install '.[hf]' && leval-harness --version

RUN useradd --create-home reader && mkdir /results /cache && chown reader /results /cache
USER reader
ENV XDG_CACHE_HOME=/cache HF_HOME=/cache/huggingface
WORKDIR /
VOLUME ["/results", "/cache"]
ENTRYPOINT ["leval-harness"]
CMD ["--help"]
