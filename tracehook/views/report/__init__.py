"""The report: what the logs of a directory say, as one HTML page that needs nothing else."""

from __future__ import annotations

from tracehook.views.report.page import make_page

__all__ = ["make_page"]
