# Two images. `slim` serves the API, builds and measures for a cluster, and tracks boards: it has
# TVM, which reads clients' programs and computes references, and no torch. `tuner` adds torch.
#   docker build --target slim --build-arg EXTRAS="server s3 onnx" .
#   docker build --target tuner .
FROM python:3.11-slim AS slim

# `ld` links measured programs and the libraries of artifacts; no compiler is needed.
RUN apt-get update && apt-get install -y --no-install-recommends binutils \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home felix && mkdir /data && chown felix /data

WORKDIR /app
COPY pyproject.toml README.md LICENSE requirements.lock deployment/requirements.py ./
# Extras of pyproject.toml.
ARG EXTRAS="server s3 onnx"
RUN python requirements.py ${EXTRAS} --without torch scipy pyarrow safetensors > needed.txt \
    && pip install --no-cache-dir -c requirements.lock -r needed.txt
COPY felix felix
COPY costmodel costmodel
COPY server server
COPY migrations migrations
RUN pip install --no-cache-dir --no-deps .

USER felix
ENV FELIX_DATA_DIR=/data
CMD ["felix", "serve", "--no-tuner"]


FROM slim AS tuner

USER root
# The plain torch package is the CUDA build; options for a CPU build go into TORCH_ARGS, e.g.
# `--build-arg TORCH_ARGS="--index-url URL-OF-CPU-BUILDS"`.
ARG TORCH_ARGS=""
ARG EXTRAS="server s3 onnx"
RUN python requirements.py ${EXTRAS} > needed.txt \
    && grep '^torch==' requirements.lock > torch.txt \
    && pip install --no-cache-dir ${TORCH_ARGS} -r torch.txt \
    && pip install --no-cache-dir -c requirements.lock -r needed.txt

USER felix
CMD ["felix", "tuner"]
