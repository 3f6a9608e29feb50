"""The page itself: everything that the other files found, put into the template together with plotly and our script.

Strings from logs are hostile until shown otherwise. They reach the page as text that jinja2 escaped, or as JSON in
which nothing can end the element; and the page's content security policy runs the scripts named here by their hashes,
and no other, and forbids every request.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from tracehook.audit.called import read_callers
from tracehook.audit.rules import check, rules
from tracehook.audit.store import Store
from tracehook.views.report import cost, findings, job, series, spread, waiting
from tracehook.views.report.phrases import file_text

_SCRIPTS = ("pictures.js", "page.js")
_UNSAFE = {ord(character): f"\\u{ord(character):04x}" for character in "<>&"}


def make_page(store: Store) -> str:
    """Return the report on the logs of `store`."""
    found = check(store)
    places = series.find_places(store)
    span = series.find_span(store, [finding.ns for finding in found if finding.ns is not None])
    time = series.read_all(store, places, span)
    measures = spread.read_spread(store, places)
    callers = read_callers(store)
    names = cost.name_communicators(store)
    data: dict[str, Any] = {
        "places": [[place.name, place.about] for place in places],
        "time": time,
        "silent": [place.silent for place in places],
    }
    rows, data["cost"], more_costs = cost.read_cost(store, names)
    place_of = {place.rank: place.number for place in reversed(places) if place.rank is not None}
    return _render(
        data,
        job=job.describe(store),
        verdict=findings.group_findings(found, rules(), place_of),
        waiting=waiting.draw_waiting(callers, found, names),
        places=places,
        cost=rows,
        more_costs=more_costs,
        has_pools=any(any(levels) for levels in time["series"]["pool"]),
        spread=measures,
        interval=span.ns / 1e9 / time["bins"],
    )


def _render(data: dict[str, Any], **context: Any) -> str:
    scripts = [get_plotlyjs(), *(file_text(name) for name in _SCRIPTS)]
    environment = Environment(
        loader=FunctionLoader(file_text), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("page.html.j2").render(
        policy=_policy(scripts),
        css=Markup(file_text("page.css")),
        data=Markup(encode(data)),
        scripts=[Markup(script) for script in scripts],
        **context,
    )


def encode(data: dict[str, Any]) -> str:
    """Return `data` as JSON that may stand in a script element: without a character that HTML knows, in ASCII."""
    return json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":")).translate(_UNSAFE)


def _policy(scripts: list[str]) -> str:
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
