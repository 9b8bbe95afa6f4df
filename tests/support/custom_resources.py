"""Checks whether KEDA and the Prometheus Operator accept an object, by models of their resource definitions."""

from __future__ import annotations

from typing import Any

import pytest

MODELS = {
    "keda.sh/v1alpha1": "cloudcoil.models.keda.v1alpha1",
    "monitoring.coreos.com/v1": "cloudcoil.models.prometheus_operator.v1",
}


def check_custom_resource(one: dict[str, Any]) -> None:
    """Fail if a field is missing, unknown or of another type. A model drops unknown fields, and converts values."""
    models = pytest.importorskip(MODELS[one["apiVersion"]], reason="run `make setup` for the schemas")
    read = getattr(models, one["kind"]).model_validate(one)
    assert read.model_dump(mode="json", by_alias=True, exclude_unset=True) == one
