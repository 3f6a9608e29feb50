"""A job that hangs until torch's own time-out leaves dumps: the audit shows the place in the program of both sides."""

import json
from pathlib import Path

import pytest
from support.audits import FINDINGS, Audit
from support.rehearsal import JOBS, rehearse_until

PLANTED = JOBS / "planted.py"


def line_of(text: str) -> int:
    """Return the number of the only line of the job that has this text."""
    (found,) = [number for number, line in enumerate(PLANTED.read_text().splitlines(), 1) if text in line]
    return found


@pytest.mark.timeout(150)
def test_the_places_of_the_call_that_waits_and_of_the_last_one_of_the_culprit(tmp_path: Path) -> None:
    """Rank 1 computes for ever after two steps. Its partner waits in the first layer of the third one."""
    log, dumps = tmp_path / "logs", tmp_path / "dumps"
    dumps.mkdir()
    env = {
        "TEST_TIMEOUT": "3",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_FR_DUMP_TEMP_FILE": str(dumps / "nccl_trace_rank_"),
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    }
    run = rehearse_until(30, PLANTED, "compute", "1", "2", ranks=2, log=log, timeout=120, env=env)
    assert len(list(dumps.iterdir())) == 2, run.output

    audit = Audit(log, "--flight-recorder", str(dumps), "--json").expect(FINDINGS)
    told = json.loads(audit.out)["flight_recorder"]
    assert told["said"] == [], audit
    culprit, waiting = told["calls"]
    assert (culprit["rule"], culprit["ranks"]) == ("rank-missing", [1])
    assert (culprit["group"], culprit["collective_seq_id"], culprit["number"]) == ("default_pg", 1, 1)
    assert culprit["frames"][0] == {
        "function": "train",
        "file": str(PLANTED),
        "line": line_of('dist.all_reduce(tensors["loss"])'),
    }
    assert waiting["ranks"] == [0]
    assert (waiting["group"], waiting["collective_seq_id"], waiting["number"]) == ("tp_0", 7, 7)
    assert waiting["state"] != "completed"
    layer = line_of('dist.all_reduce(tensors["layer"], group=groups["tp"])')
    assert [(frame["function"], frame["line"]) for frame in waiting["frames"][:3]] == [
        ("layer", layer),
        ("train", line_of("layer(step, number)")),
        ("<module>", line_of("    train(step)")),
    ]
    text = Audit(log, "--flight-recorder", str(dumps)).expect(FINDINGS).out
    assert f"    layer, {PLANTED}:{layer}\n" in text
    assert text.splitlines()[-1].startswith("First divergence")
