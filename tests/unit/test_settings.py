"""Every variable: what it takes, what it refuses, and what is said about it."""

from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from tracehook.settings import Settings, from_environment, shared, table

GOOD = [
    ("HOOK", "1", "hook", True),
    ("HOOK", "0", "hook", False),
    ("LOG", "/var/log/job", "log", Path("/var/log/job")),
    ("LOG", "~/job", "log", Path.home() / "job"),
    ("JOB", "night 3/a", "job", "night 3/a"),
    ("CHECK", "1", "check", True),
    ("CHECK", "0", "check", False),
    ("POLICY", "measured", "policy", ("measured",)),
    ("POLICY", " measured, shared ,", "policy", ("measured", "shared")),
    ("TIMEOUT", "0.5", "timeout", 0.5),
    ("TIMEOUT", "600", "timeout", 600.0),
    ("GUARD", "watch", "guard", "watch"),
    ("GUARD", "off", "guard", "off"),
    ("INTEGRATIONS", "auto", "integrations", ("sglang", "vllm", "megatron")),
    ("INTEGRATIONS", "vllm", "integrations", ("vllm",)),
    ("INTEGRATIONS", " megatron, sglang ,", "integrations", ("megatron", "sglang")),
    ("SEGMENTS", "no-graph-pools, from-20MiB,", "segments", ("no-graph-pools", "from-20MiB")),
    ("SEGMENTS", "mine", "segments", ("mine",)),
    ("POOL_LIMIT", "8589934592", "pool_limit", 8 * 2**30),
    ("POOL_LIMIT", "1", "pool_limit", 1),
    ("POOL_LIMIT", "3KiB", "pool_limit", 3 * 2**10),
    ("POOL_LIMIT", "512MiB", "pool_limit", 512 * 2**20),
    ("POOL_LIMIT", "8GiB", "pool_limit", 8 * 2**30),
    ("POOL_LIMIT", "8 GiB", "pool_limit", 8 * 2**30),
    ("POOL_LIMIT", "2tib", "pool_limit", 2 * 2**40),
]

BAD = [
    ("HOOK", "yes", "expected 0 or 1"),
    ("HOOK", "2", "expected 0 or 1"),
    ("CHECK", " 1", "expected 0 or 1"),
    ("POLICY", " , ", "expected names of policies, separated by commas"),
    ("TIMEOUT", "soon", "expected a number of seconds"),
    ("TIMEOUT", "0", "expected seconds above 0 and below a million"),
    ("TIMEOUT", "-3", "expected seconds above 0 and below a million"),
    ("TIMEOUT", "nan", "expected seconds above 0 and below a million"),
    ("TIMEOUT", "inf", "expected seconds above 0 and below a million"),
    ("GUARD", "log", "expected on, watch or off"),
    ("SEGMENTS", ",", "expected all, no-graph-pools, no-pausable, from-SIZE or own-allocators"),
    ("SEGMENTS", "all,from-", "expected bytes above 0, such as 8589934592 or 8GiB"),
    ("SEGMENTS", "20MiB", "expected from-20MiB for segments of at least that size"),
    *(
        ("INTEGRATIONS", text, "expected auto, or names of sglang, vllm, megatron, separated by commas")
        for text in (",", "torch", "auto,vllm", "SGLang", "1")
    ),
    *(
        ("POOL_LIMIT", text, "expected bytes above 0, such as 8589934592 or 8GiB")
        for text in ("0", "0GiB", "-1", "1.5GiB", "1e9", "1_000", "8G", "8GB", "8B", "GiB", "half", "8GiB8", "\u0668")
    ),
]


def _read(**variables):
    return from_environment({f"SYMM_REGISTER_{name}": text for name, text in variables.items()})


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {f"SYMM_REGISTER_{name}": "" for name in ("HOOK", "LOG", "TIMEOUT", "POLICY")},
        {"NCCL_DEBUG": "INFO", "SYMM_REG": "1", "XSYMM_REGISTER_HOOK": "1"},
    ],
    ids=["empty", "of empty values", "of others"],
)
def test_an_environment_without_our_variables_gives_the_defaults(environment):
    """There is nothing to complain about: a variable that is set to nothing counts as unset."""
    assert from_environment(environment) == (Settings(), [])


@pytest.mark.parametrize(("variable", "text", "name", "value"), GOOD)
def test_a_good_value_is_read(variable, text, name, value):
    """A good value is taken, and the other settings keep their defaults."""
    settings, complaints = _read(**{variable: text})
    assert complaints == []
    assert settings == Settings(**{name: value})


@pytest.mark.parametrize(("variable", "text", "expected"), BAD)
def test_a_bad_value_is_named_and_the_default_used(variable, text, expected):
    """One line says which variable, what was seen, what was expected and what is used instead."""
    default = {name: shown for name, shown, _ in table()}[f"SYMM_REGISTER_{variable}"]
    assert _read(**{variable: text}) == (
        Settings(),
        [f"SYMM_REGISTER_{variable}={text!r}: {expected}; using the default ({default})"],
    )


def test_a_typing_error_in_a_name_is_noticed():
    """A variable with our prefix that is none of ours is named: with the one that is meant, or with all that exist."""
    settings, (first, line) = _read(HOK="1", HOOK="1", ZZZ="1")
    assert settings == Settings(hook=True)
    assert first == "SYMM_REGISTER_HOK is not a variable of tracehook; is SYMM_REGISTER_HOOK meant?"
    assert line.startswith("SYMM_REGISTER_ZZZ is not a variable of tracehook; known are SYMM_REGISTER_HOOK, ")
    assert all(variable in line for variable, _, _ in table())


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("LOCAL_MIN", "20MiB", "set SYMM_REGISTER_SEGMENTS=from-20MiB"),
        ("LOG_PACKED", "1", "set SYMM_REGISTER_LOG_LIMIT, which bounds the log of a process"),
        ("ON_STALL", "abort", "set SYMM_REGISTER_GUARD=on, watch or off"),
        ("VERIFY", "0", "set SYMM_REGISTER_GUARD=on, watch or off"),
    ],
)
def test_a_setting_that_was_replaced_is_told_with_its_new_spelling(name: str, value: str, told: str):
    """One line has the new variable, with the value that does what the old one did if there is one."""
    settings, complaints = _read(**{name: value})
    assert settings == Settings()
    assert complaints == [f"SYMM_REGISTER_{name} has no effect any more: {told}"]


def test_every_complaint_is_a_line_of_its_own():
    """Several mistakes are all reported, and the good values are still read."""
    settings, complaints = _read(TIMEOUT="x", GUARD="y", LOCAL="observe", ON_ERROR="warn", ZZZ="1")
    assert settings == Settings(local="observe")
    assert [line.partition("=")[0].partition(" ")[0] for line in complaints] == [
        "SYMM_REGISTER_TIMEOUT",
        "SYMM_REGISTER_GUARD",
        "SYMM_REGISTER_ON_ERROR",
        "SYMM_REGISTER_ZZZ",
    ]
    assert not any("\n" in line for line in complaints)


def test_a_home_that_does_not_exist_is_a_complaint():
    """Reading never raises, whatever stands in a variable; and what it said does not change."""
    settings, complaints = _read(LOG="~nobody-has-this-name/job")
    assert settings == Settings()
    assert len(complaints) == 1
    with pytest.raises(FrozenInstanceError):
        settings.hook = True


def test_the_table_lists_every_setting_once():
    """With a row, a default and a meaning; a default, written into the environment as it is shown, changes nothing."""
    rows = table()
    assert len(rows) == len(fields(Settings)) == len({variable for variable, _, _ in rows})
    assert all(variable.startswith("SYMM_REGISTER_") and default and meaning for variable, default, meaning in rows)
    assert [(variable, default) for variable, default, _ in rows][:2] == [
        ("SYMM_REGISTER_HOOK", "0"),
        ("SYMM_REGISTER_LOG", "unset"),
    ]
    shown = {variable: default for variable, default, _ in table() if default != "unset"}
    assert from_environment(shown) == (Settings(), [])


def test_what_ranks_must_share_is_told_as_texts():
    """By variable: what another rank reads and compares."""
    told = shared(Settings(policy=("measured", "shared"), segments=("no-graph-pools", "from-7")))
    assert told["SYMM_REGISTER_POLICY"] == "measured,shared"
    assert told["SYMM_REGISTER_SEGMENTS"] == "no-graph-pools,from-7"
    assert told["SYMM_REGISTER_GUARD"] == "on"
    assert "SYMM_REGISTER_LOG" not in told
