# Start Redis and two workers: docker compose up --build --scale worker=2
services:
  redis:
    image: redis:7-alpine
    # Redis logs its writes and rejects new turns when its memory is full, instead of dropping accepted ones.
    command: ["redis-server", "--appendonly", "yes", "--appendfsync", "everysec", "--maxmemory-policy", "noeviction", "--stream-node-max-bytes", "1024", "--hash-max-listpack-value", "1024"]
    ports: ["127.0.0.1:6379:6379"]
    volumes: ["redis-data:/data"]
    healthcheck:
      test: ["CMD", "redis-cli", "ping"]
      interval: 5s
      timeout: 3s
      retries: 10

  worker:
    build: .
    command: ["antiphon", "worker", "--app", "app:app"]
    init: true
    env_file: [.env]
    environment:
      ANTIPHON_REDIS_URL: redis://redis:6379/0
    depends_on:
      redis:
        condition: service_healthy
    # A stopped worker finishes its turns for up to 25 s and then requeues the rest.
    stop_grace_period: 50s
    restart: unless-stopped

volumes:
  redis-data:
