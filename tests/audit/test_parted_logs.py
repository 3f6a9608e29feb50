"""Audits of logs whose oldest parts were thrown away: what is left is a proof, and nothing more is claimed."""

import gzip
from pathlib import Path

import pytest
from support.audits import CLEAN, FINDINGS, Audit
from support.parted import Program, churn

ENOUGH = 12_000  # segments that come and go: more than the logs of the tests keep


@pytest.fixture
def ranks(tmp_path: Path) -> list[Program]:
    """Return two ranks with a communicator."""
    made = [Program(tmp_path, rank=rank, ranks=2) for rank in range(2)]
    for program in made:
        program.join(1)
    return made


def finish(ranks: list[Program]) -> Path:
    """Close the logs in order; return their folder."""
    for program in ranks:
        program.leave(1)
        program.end()
    return ranks[0].folder


def test_what_is_left_of_a_good_job_is_clean_from_then_on(ranks: list[Program]) -> None:
    """The audit says from when on it is a proof, and why not from the beginning."""
    for program in ranks:
        kept = program.alloc()
        churn(program, ENOUGH)
        program.free(kept)
    done = Audit(finish(ranks))
    done.expect(
        CLEAN, "proof from 2026-11-24T06:00:0", "2 logs threw older lines away", "Clean from 2026-11-24T06:00:0"
    )
    assert "made and undone" not in done.out


def test_a_whole_log_says_nothing_of_parts(ranks: list[Program]) -> None:
    """However many parts it has, if all of them are there."""
    for program in ranks:
        churn(program, 200)
        program.parts.rotate()
        churn(program, 200)
    Audit(finish(ranks)).expect(CLEAN, "Clean: 800 registrations")


def test_a_fault_in_what_is_left_is_found(ranks: list[Program]) -> None:
    """A segment that is freed while a communicator holds it."""
    for program in ranks:
        churn(program, ENOUGH)
    ranks[1].say("segment.free", segment=ranks[1].alloc(), addr="0x1", size=1 << 21)
    Audit(finish(ranks)).expect(FINDINGS, "freed-while-registered", "rank 1 freed segment")


def test_a_fault_of_a_segment_that_was_born_before_is_found(ranks: list[Program]) -> None:
    """The checkpoint has its birth and its registration."""
    kept = ranks[0].alloc()
    for program in ranks:
        churn(program, ENOUGH)
    ranks[0].say("segment.free", segment=kept, addr="0x1", size=1 << 21)
    Audit(finish(ranks)).expect(FINDINGS, "freed-while-registered", f"rank 0 freed segment {kept}")


def test_of_a_fault_that_was_thrown_away_nothing_is_claimed(ranks: list[Program]) -> None:
    """No finding, but no word of the time before either."""
    ranks[1].say("segment.free", segment=ranks[1].alloc(), addr="0x1", size=1 << 21)
    for program in ranks:
        churn(program, ENOUGH)
    Audit(finish(ranks)).expect(CLEAN, "proof from", "Clean from")


def test_a_problem_is_found_however_old_it_is(ranks: list[Program]) -> None:
    """Warnings and problems are kept longer than detail."""
    for program in ranks:
        program.say("agreement.mismatch", comm=f"{1:016x}", comm_id=1, comm_rank=program.rank, entries=1)
        churn(program, ENOUGH)
    Audit(finish(ranks)).expect(FINDINGS, "agreement-mismatch")


def test_ranks_that_keep_different_times_are_not_taken_for_different(ranks: list[Program]) -> None:
    """Rank 1 is busy and keeps less: windows and communicators that only rank 0 still tells of are no finding."""
    for program in ranks:
        for ordinal in range(6):
            program.window(ordinal)
            if ordinal % 2:
                program.end_window(ordinal)
        program.join(2)
        program.leave(2)
    churn(ranks[1], ENOUGH)
    for program in ranks:
        program.window(6)
        for ordinal in (0, 2, 4, 6):
            program.end_window(ordinal)
    Audit(finish(ranks)).expect(CLEAN, "1 log threw older lines away")


def test_counts_of_an_ended_communicator_outlive_it_on_some_ranks(ranks: list[Program]) -> None:
    """Each log keeps the newest of them: a rank whose counts are gone is not missing from the communicator."""
    for program in ranks:
        program.join(2)
        program.leave(2)
    counts = {"calls": 0, "calls_returned": 0, "transfers": 0, "transfers_returned": 0, "moved_ns": 1, "born_ns": 1}
    named = {"comm": f"{2:016x}", "comm_id": 2, "comm_rank": 0, "ranks": 2, "aborted": False}
    ranks[0].say_aside("communicator.calls", **named, **counts, peers="", last="", last_transfers="")
    for program in ranks:
        churn(program, ENOUGH)
    Audit(finish(ranks)).expect(CLEAN, "2 logs threw older lines away")


def test_windows_of_different_sizes_are_found_after_parts_are_gone(ranks: list[Program]) -> None:
    """They are compared by their number on the communicator, which all ranks count alike."""
    for program in ranks:
        for ordinal in range(6):
            program.window(ordinal)
            program.end_window(ordinal)
    churn(ranks[1], ENOUGH)
    for program in ranks:
        program.window(6, size=(1 + program.rank) << 21)
        program.end_window(6)
    Audit(finish(ranks)).expect(FINDINGS, "window-order", "the sizes of windows differ at window 6")


def test_a_window_that_one_rank_lacks_is_found_after_parts_are_gone(ranks: list[Program]) -> None:
    """Of those that were made since then."""
    for program in ranks:
        program.window(0)
        program.end_window(0)
    churn(ranks[1], ENOUGH)
    for ordinal in (1, 2):
        for program in ranks[: 3 - ordinal]:
            program.window(ordinal)
            program.end_window(ordinal)
    Audit(finish(ranks)).expect(FINDINGS, "window-order", "the number of windows differs at window 2")


def test_a_part_that_somebody_removed_is_missed(ranks: list[Program]) -> None:
    """A hole between two parts is no limit's doing."""
    for program in ranks:
        for _ in range(3):
            churn(program, 200)
            program.parts.rotate()
    (ranks[0].folder / "job.rank0.h.7.part2.jsonl").unlink()
    Audit(finish(ranks)).expect(FINDINGS, "lost-events", "rank 0: 800 events missing")


def test_parts_that_are_packed_are_read(tmp_path: Path) -> None:
    """As somebody packed them who ran out of room."""
    program = Program(tmp_path)
    program.join(1, ranks=1)
    churn(program, 2 * ENOUGH)
    folder = finish([program])
    before = Audit(folder)
    before.expect(CLEAN, "Clean from ")
    for file in tmp_path.glob("*.jsonl"):
        if file != program.parts.path:
            file.with_suffix(".jsonl.gz").write_bytes(gzip.compress(file.read_bytes()))
            file.unlink()
    assert len(list(tmp_path.glob("*.gz"))) > 4
    assert Audit(folder).out == before.out


def test_a_line_that_sums_counts_for_those_that_are_not_there(ranks: list[Program]) -> None:
    """Then nothing is missing; a gap that is larger than the sum is a loss."""
    for program in ranks:
        program.seq += 40
        program.say_aside("log.summed", count=40, segments=10, bytes=1 << 20, registrations=10, until_seq=program.seq)
    ranks[1].seq += 1
    Audit(finish(ranks)).expect(FINDINGS, "lost-events", "rank 1: 1 event missing")
