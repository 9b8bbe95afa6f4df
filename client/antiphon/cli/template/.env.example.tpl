# Copy this file to .env and fill it in. Keep .env out of version control.
OPENAI_API_KEY=
ANTIPHON_REDIS_URL=redis://localhost:6379/0
# To try the project without an API key, use the provider that repeats your words:
# MODEL_PROVIDER=scripted
MODEL_PROVIDER=openai
MODEL_NAME=gpt-4o
