"""Communicators that grow, and that are suspended, in a rehearsal: what NCCL has from 2.30 on."""

from support.rehearsal import rehearse

INVALID_ARGUMENT, INVALID_USAGE = 4, 5  # ncclResult_t


def test_a_communicator_grows_and_rests() -> None:
    """A rank joins with the id that one of the others gave it; while it is suspended it takes no work."""
    run = rehearse("grown.py", ranks=2)
    assert run.broken == ["C2"], run.output
    assert "ncclAllReduce while it is suspended" in run.finished.err
    for rank in (0, 1):
        facts = run.facts(rank)
        assert (facts["ranks"], facts["rank"], facts["sum"], facts["resumed"]) == (2, rank, 200, 200)
        assert facts["suspended"] == INVALID_ARGUMENT
        assert facts["twice"] == INVALID_USAGE
    assert (run.facts(0)["fewer"], run.facts(1)["nothing"]) == (INVALID_ARGUMENT, INVALID_ARGUMENT)
