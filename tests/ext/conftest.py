"""What the tests of the adapters share."""

from __future__ import annotations

import os

os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"  # it would send traces to a service
os.environ["LANGSMITH_TRACING"] = "false"
