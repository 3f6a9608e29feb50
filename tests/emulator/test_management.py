"""The emulated NVML, which monitors and schedulers (Ray) ask about devices."""

from support.rehearsal import rehearse

INVALID_ARGUMENT, INSUFFICIENT_SIZE = 2, 7  # what NVML says


def test_a_device_has_the_name_that_torch_gives_it() -> None:
    """A place that is too small for the name, and a device that is none, are refused."""
    run = rehearse("nvml.py", "name", devices=2)
    run.assert_good()
    facts = run.facts()
    assert (facts["found"], facts["name"]) == (0, facts["torch"]), run.output
    assert (facts["short"], facts["nobody"]) == (INSUFFICIENT_SIZE, INVALID_ARGUMENT)
