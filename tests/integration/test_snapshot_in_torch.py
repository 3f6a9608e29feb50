"""The memory snapshot in PyTorch's own tools."""

from __future__ import annotations

import ast
import pickle
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb")

from support.generated_logs import write_job
from torch.cuda import _memory_viz as viz

from tracehook.audit.store import Store
from tracehook.views import snapshot


@pytest.fixture
def made(tmp_path: Path) -> dict[str, Any]:
    """The snapshot of two ranks, as ``torch.cuda._memory_viz`` reads it."""
    write_job(tmp_path / "logs", ranks=2, events=300)
    with Store(tmp_path / "logs") as store, (tmp_path / "snapshot.pickle").open("wb") as file:
        snapshot.write(store, snapshot.devices(store), file)
    with (tmp_path / "snapshot.pickle").open("rb") as file:
        return pickle.load(file)


def test_trace(made):
    """Segments come and go in its words, and every entry of ours is told as it is."""
    text = viz.trace(made)
    said = Counter(entry["action"] for trace in made["device_traces"] for entry in trace)
    assert text.count("cudaMalloc(") == said["segment_alloc"]
    assert text.count("cudaFree(") == said["segment_free"]
    told = [ast.literal_eval(line) for line in text.splitlines() if line.startswith("{")]
    ours = Counter({action: count for action, count in said.items() if action not in ("segment_alloc", "segment_free")})
    assert Counter(entry["action"] for entry in told) == ours
    assert re.findall(r"Device (\d) -", text) == ["0", "1"]


def test_stats(made):
    """The memory is accounted for: all reserved, none known to be allocated."""
    held = sum(segment["total_size"] for segment in made["segments"])
    text = viz.segsum(made)
    assert f"segments: {len(made['segments'])}\n" in text
    assert f"total_reserved: {viz.Bytes(held)}\n" in text
    assert "total_allocated: 0.0B" in text


def test_flame_graphs(made):
    """Segments and blocks have a line each."""
    assert len(viz.segments(made, format_flamegraph=str).splitlines()) == len(made["segments"])
    assert len(viz.memory(made, format_flamegraph=str).splitlines()) == len(made["segments"])


def test_pages(made):
    """The pages that torch makes of a snapshot can be made."""
    for page in (viz.trace_plot(made), viz.trace_plot(made, plot_segments=True), viz.segment_plot(made)):
        assert "snapshot.pickle" in page


def test_entries_have_the_fields_of_torch(made):
    """What torch writes for a segment is there, of the same types."""
    for trace in made["device_traces"]:
        for entry in trace:
            types = {"action": str, "addr": int, "size": int, "stream": int, "time_us": int, "frames": list}
            assert {name: type(entry[name]) for name in types} == types
    fields = {"device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream", "blocks"}
    fields |= {"segment_type", "segment_pool_id", "is_expandable", "frames"}
    assert all(set(segment) == fields for segment in made["segments"])
