# The image of workers and gateways. To add your own agents and tools:
#
#   FROM antiphon
#   COPY app.py /app/
#   ENV ANTIPHON_APP=app:app
#
# Every package is pinned with its hashes. `make pins` writes deploy/image anew.
FROM python:3.12-slim AS build

WORKDIR /source
COPY deploy/image/build-requirements.txt ./
RUN pip install --no-cache-dir --require-hashes --requirement build-requirements.txt
COPY pyproject.toml README.md LICENSE ./
COPY client client
COPY worker worker
COPY docs docs
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .

FROM python:3.12-slim

RUN useradd --create-home --uid 1000 antiphon && install --directory --owner antiphon /archive

COPY deploy/image/requirements.txt /tmp/
RUN pip install --no-cache-dir --require-hashes --requirement /tmp/requirements.txt
COPY --from=build /wheels /tmp/wheels
RUN pip install --no-cache-dir --no-deps --no-index /tmp/wheels/*.whl

WORKDIR /app
USER antiphon
ENV PYTHONUNBUFFERED=1 PYTHONPATH=/app

# SIGTERM drains the worker: it finishes running turns, or gives them back for other workers.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=10s --start-period=10s CMD ["antiphon", "worker", "check"]
ENTRYPOINT ["antiphon"]
CMD ["worker"]
