"""Write the tables of fields and events into log-schema.md: ``python docs/write_tables.py``.

They come from tracehook/cpp/events. A test fails when the page has others.
"""

from __future__ import annotations

import re
from pathlib import Path

from tracehook.audit.fields import TABLE
from tracehook.log.tables import ABOUT

PAGE = Path(__file__).with_name("log-schema.md")
BEGIN = "<!-- The tables down to the next comment are written by docs/write_tables.py from tracehook/cpp/events. -->"
END = "<!-- Here they end. -->"


def fields() -> str:
    """Return the table of fields."""
    lines = ["| field | meaning |", "|---|---|"]
    for name, field in TABLE.items():
        lines.append(f"| {'**' * field.is_common}`{name}`{'**' * field.is_common} | {field.meaning} |")
    return "\n".join(lines)


def events() -> str:
    """Return the table of events."""
    lines = ["| event | severity | what happened | its own fields |", "|---|---|---|---|"]
    for name, event in ABOUT.items():
        sentence = re.sub(r"{(\w+)}", r"`\1`", event.sentence)
        own = ", ".join(f"`{field}`" for field in event.fields)
        lines.append(f"| `{name}` | {event.severity} | {sentence} | {own} |")
    return "\n".join(lines)


def page(text: str) -> str:
    """Return the text of the page with new tables."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{fields()}\n\n{events()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
