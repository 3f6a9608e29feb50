"""A tuning table as a page with pictures: time and bandwidth over size, for both kinds of memory."""

from __future__ import annotations

from html import escape

from tracehook.log.text import in_bytes
from tracehook.tuning.table import Point, Row, Table

_COLOURS = {"plain": "#7f7f7f", "symmetric": "#1f77b4"}
_STYLE = "body { font-family: sans-serif; max-width: 1200px; margin: 2em auto; padding: 0 1em; }"


def make_tuning_page(table: Table) -> str:
    """Return the page, which needs no other file."""
    from plotly.offline import get_plotlyjs

    machine = table.machine
    multicast = "with" if machine.multicast else "without"
    about = f"{machine.gpu}, NCCL {machine.nccl}, {multicast} multicast, torch {machine.torch}"
    rule = (
        f"A larger mark shows what policy <code>measured</code> chooses: symmetric memory where it is faster by more "
        f"than {table.margin:.1%}. Times are medians of the slowest rank."
    )
    pictures = "".join(_picture(kind, points, table.margin) for kind, points in sorted(table.rows.items()))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>tracehook tune</title>'
        f"<style>{_STYLE}</style><script>{get_plotlyjs()}</script></head><body>"
        f"<h1>Symmetric memory or plain</h1><p>{escape(about)}. Table {table.digest}.</p><p>{rule}</p>"
        f"{pictures}</body></html>"
    )


def _picture(kind: Row, points: list[Point], margin: float) -> str:
    from plotly import graph_objects
    from plotly.subplots import make_subplots

    way = "in a CUDA graph" if kind.graph else "called eagerly"
    title = f"{kind.operation}, {kind.dtype}, {kind.ranks} ranks on {kind.hosts} host{'s' * (kind.hosts > 1)}, {way}"
    figure = make_subplots(cols=2, subplot_titles=("time of a call", "bytes of the larger buffer / time"))
    sizes = [point.nbytes for point in points]
    is_symmetric = [point.prefers_symmetric(margin) for point in points]
    for name, colour in _COLOURS.items():
        times = [getattr(point, f"{name}_us") for point in points]
        marks = [10 if chosen == (name == "symmetric") else 4 for chosen in is_symmetric]
        style = {"name": name, "legendgroup": name, "line": {"color": colour}, "marker": {"size": marks}}
        rates = [size / time / 1000 for size, time in zip(sizes, times, strict=True)]
        for column, values in enumerate((times, rates), start=1):
            trace = graph_objects.Scatter(x=sizes, y=values, mode="lines+markers", showlegend=column == 1, **style)
            figure.add_trace(trace, row=1, col=column)
    ticks = {"type": "log", "tickvals": sizes[::4], "ticktext": [in_bytes(size) for size in sizes[::4]]}
    figure.update_xaxes(**ticks)
    figure.update_yaxes(type="log", dtick=1, title="microseconds", row=1, col=1)
    figure.update_yaxes(title="GB/s", row=1, col=2)
    figure.update_layout(title=title, height=340, template="plotly_white", margin={"t": 80, "b": 40})
    html: str = figure.to_html(full_html=False, include_plotlyjs=False, config={"displayModeBar": False})
    return html
