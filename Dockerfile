# The service: API, tuner and commands. CPU only; torch comes from its CPU index.
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
RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu torch==2.13.0 \
    && pip install --no-cache-dir '.[server,s3,onnx,plot]'

USER felix
ENV FELIX_DATA_DIR=/data
CMD ["felix", "serve"]
