"""The schemas of an OpenAPI document, each compiled once: creating a validator takes far longer than using it."""

import json
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

DOCUMENT = "urn:document"


class Schemas:
    """Checks values against the schemas of a document, which may refer to its components."""

    def __init__(self, document: Any) -> None:
        self.components: dict[str, Any] = document["components"]["schemas"]
        self._registry = Registry().with_resource(DOCUMENT, Resource(document, DRAFT202012))
        self._validators: dict[str, Draft202012Validator] = {}

    def check(self, value: Any, schema: Any) -> None:
        """Fail unless the value fits the schema, which may be the name of a component."""
        if isinstance(schema, str):
            schema = {"$ref": f"#/components/schemas/{schema}"}
        known = json.dumps(schema).replace('"#/', f'"{DOCUMENT}#/')
        if known not in self._validators:
            self._validators[known] = Draft202012Validator(json.loads(known), registry=self._registry)
        self._validators[known].validate(value)
