# The image of the workers.
FROM python:3.12-slim
WORKDIR /app
COPY requirements.txt ./
RUN pip install --no-cache-dir --requirement requirements.txt
COPY *.py ./
RUN useradd --create-home antiphon
USER antiphon
ENV PYTHONUNBUFFERED=1
STOPSIGNAL SIGTERM
