# The image of workers and gateways. To add your own agents and tools:
#
#   FROM antiphon
#   COPY app.py /app/
#   ENV ANTIPHON_APP=app:app
FROM python:3.12-slim

RUN useradd --create-home --uid 1000 antiphon && install --directory --owner antiphon /archive

WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY client client
COPY worker worker
RUN pip install --no-cache-dir '.[worker,gateway,metrics]'

WORKDIR /app
USER antiphon
ENV PYTHONUNBUFFERED=1 PYTHONPATH=/app

# SIGTERM drains the worker: it finishes running turns, or gives them back for other workers.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=10s --start-period=10s CMD ["antiphon", "worker", "check"]
ENTRYPOINT ["antiphon"]
CMD ["worker"]
