.env
.venv/
__pycache__/
.pytest_cache/
