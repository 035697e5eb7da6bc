# The service: API, tuner and commands. The plain torch package is the CUDA build; options for a
# CPU build go into TORCH_ARGS, e.g. `--build-arg TORCH_ARGS="--index-url URL-OF-CPU-BUILDS"`.
FROM python:3.11-slim

RUN apt-get update && apt-get install -y --no-install-recommends gcc g++ \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home felix && mkdir /data && chown felix /data

WORKDIR /app
COPY pyproject.toml README.md LICENSE ./
COPY felix felix
COPY costmodel costmodel
COPY server server
COPY migrations migrations
ARG TORCH_ARGS=""
RUN pip install --no-cache-dir ${TORCH_ARGS} torch==2.13.0 \
    && pip install --no-cache-dir '.[server,s3,onnx,plot]'

USER felix
ENV FELIX_DATA_DIR=/data
CMD ["felix", "serve"]
