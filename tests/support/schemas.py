"""The schemas of what commands print with --json (tracehook/schemas)."""

from __future__ import annotations

import functools
import json
from importlib.resources import files

from jsonschema import Draft202012Validator

_FOLDER = files("tracehook") / "schemas"
NAMES = sorted(file.name.removesuffix(".json") for file in _FOLDER.iterdir() if file.name.endswith(".json"))


@functools.cache
def validator(name: str) -> Draft202012Validator:
    """Return what checks an object against a schema."""
    schema = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def problems(name: str, told: object) -> list[str]:
    """Return in what an object does not fit a schema."""
    return [f"{error.json_path}: {error.message}" for error in validator(name).iter_errors(told)]
