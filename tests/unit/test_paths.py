"""Which path NCCL takes for a collective: the table of its rules, by version."""

from pathlib import Path
from typing import Any

import pytest

from tracehook.nccl.paths import path_of
from tracehook.nccl.rules import NEVER_LL, RULES

KB, MB, GB = 1 << 10, 1 << 20, 1 << 30
VERSIONS = (22707, 22809, 22907, 23007)
S, P, D, C = "symmetric", "plain", "depends", "copy_engine"


def kind(operation: str = "all_reduce", windows: str = "both", nbytes: int = 64 * MB, **more: Any) -> str:
    """Return the kind of a call on eight ranks that NVLink joins, on devices before Blackwell."""
    return ask(operation, windows, nbytes, **more)[0]


def ask(operation: str = "all_reduce", windows: str = "both", nbytes: int = 64 * MB, **more: Any) -> tuple[str, str]:
    """Return the kind and the reason."""
    call: dict[str, Any] = {"ranks": 8, "version": 22907, "domain": "nvlink", "capability": 90, **more}
    sends, receives = windows in ("both", "send"), windows in ("both", "receive")
    path = path_of(operation, sends_in_window=sends, receives_in_window=receives, nbytes=nbytes, **call)
    assert path.text, path
    assert "\n" not in path.text, path
    return path[:2]


#                                                 2.27.7, 2.28.9, 2.29.7, 2.30.7
WINDOWS: dict[tuple[str, str, int], tuple[str, str, str, str]] = {
    ("all_reduce", "both", KB): (S, S, S, S),
    ("all_reduce", "both", 64 * MB): (S, S, S, S),
    ("all_reduce", "send", KB): (P, P, D, D),
    ("all_reduce", "receive", KB): (P, P, D, D),
    ("all_reduce", "send", 2 * GB): (P, P, P, P),
    ("all_reduce", "none", KB): (P, P, P, P),
    ("all_gather", "both", KB): (S, S, S, S),
    ("all_gather", "receive", KB): (P, P, D, D),
    ("all_gather", "receive", 64 * MB): (P, P, S, S),
    ("all_gather", "send", KB): (P, P, D, D),
    ("all_gather", "send", 256 * MB): (P, P, P, P),
    ("all_gather", "none", 64 * MB): (P, P, P, P),
    ("reduce_scatter", "both", KB): (S, S, S, S),
    ("reduce_scatter", "send", KB): (P, P, D, D),
    ("reduce_scatter", "send", 64 * MB): (P, P, S, S),
    ("reduce_scatter", "receive", KB): (P, P, D, D),
    ("reduce_scatter", "receive", 256 * MB): (P, P, P, P),
    ("reduce_scatter", "none", KB): (P, P, P, P),
    ("all_to_all", "both", 64 * MB): (P, P, P, P),
    ("broadcast", "both", 64 * MB): (P, P, P, P),
}


@pytest.mark.parametrize("case", WINDOWS, ids=lambda case: f"{case[0]}-{case[1]}-{case[2]}")
def test_the_windows_that_each_version_needs(case: tuple[str, str, int]) -> None:
    """Before 2.29.2 both; from then on one can be enough, and for short messages NCCL's cost model decides."""
    operation, windows, nbytes = case
    assert tuple(kind(operation, windows, nbytes, version=version) for version in VERSIONS) == WINDOWS[case]


FLOATS = ("float32", "torch.bfloat16", "float16", "float8_e4m3fn", "complex64")
OTHER_TYPES = ("float64", "complex128", "int32", "int64", "uint8", "bool")
REDUCING = ("all_reduce", "reduce_scatter")
BLACKWELL: dict[str, Any] = {"operation": "all_gather", "capability": 100, "itemsize": 4}
BETWEEN: dict[str, Any] = {"operation": "all_to_all", "domain": "several", "policy": 2}
BY_VERSION: list[tuple[str, dict[str, Any], tuple[str, str, str, str]]] = [
    ("2.27 takes only a collective that is alone in its group", {"grouped": True}, (P, S, S, S)),
    ("from 2.29.2 on kernels need direct NVLink", {"domain": "peers"}, (S, S, P, P)),
    ("from 2.30.3 on the average has one", {"reduction": "ReduceOp.AVG"}, (P, P, P, S)),
    ("from 2.29 on there are kernels between domains", {"operation": "all_gather", "domain": "several"}, (P, P, D, D)),
    ("between domains", {"operation": "all_gather", "windows": "receive", "domain": "several"}, (P, P, P, P)),
    ("between domains", {"operation": "reduce_scatter", "domain": "several"}, (P, P, S, S)),
    ("between domains", {"operation": "reduce_scatter", "windows": "send", "domain": "several"}, (P, P, S, S)),
    ("between domains", {"operation": "reduce_scatter", "windows": "receive", "domain": "several"}, (P, P, P, P)),
    ("none between domains for all_reduce", {"domain": "several"}, (P, P, P, P)),
    (
        "from 2.29.2 on LL kernels without windows",
        {"windows": "none", "nbytes": KB, "settings": {"NCCL_SYM_NOWIN_ENABLE": "1"}},
        (P, P, D, D),
    ),
    ("more than 8 Mi elements on Blackwell are copied", BLACKWELL | {"nbytes": 33 * MB}, (S, S, C, C)),
    ("8 Mi elements are not", BLACKWELL | {"nbytes": 32 * MB}, (S, S, S, S)),
    (
        "a setting changes the number",
        BLACKWELL | {"nbytes": 32 * MB, "settings": {"NCCL_SYM_CE_THRESHOLD": "1024"}},
        (S, S, C, C),
    ),
    *(
        (
            "policy zero: from 2.28.3 on with both windows, from 2.29.2 on with the receive window",
            {"operation": operation, "windows": windows, "nbytes": 256 * MB, "policy": 2},
            (S if (operation, windows) == ("all_gather", "both") else P, *since),
        )
        for operation in ("all_gather", "all_to_all", "gather", "scatter")
        for windows, since in (("both", (C, C, C)), ("receive", (P, C, C)), ("send", (P, P, P)))
    ),
]


@pytest.mark.parametrize(("rule", "call", "wanted"), BY_VERSION)
def test_a_rule_that_versions_have_differently(rule: str, call: dict[str, Any], wanted: tuple[str, ...]) -> None:
    """Each of VERSIONS has the kind of its column."""
    assert tuple(kind(**call, version=version) for version in VERSIONS) == wanted, rule


ALL = [
    *((S, "in_windows", {"dtype": dtype, "operation": operation}) for dtype in FLOATS for operation in REDUCING),
    *((P, "dtype", {"dtype": dtype, "operation": operation}) for dtype in OTHER_TYPES for operation in REDUCING),
    *((P, "reduction", {"reduction": reduction}) for reduction in ("min", "max", "product", "premul_sum")),
    (D, "domain", {"domain": None}),
    (P, "dtype", {"domain": None, "dtype": "int32"}),
]


@pytest.mark.parametrize(("wanted", "reason", "call"), ALL)
def test_a_rule_of_all_versions(wanted: str, reason: str, call: dict[str, Any]) -> None:
    """Floats of 32 bits and fewer are reduced, by a sum; an unknown domain matters only where the rest would do."""
    assert {ask(**call, version=version) for version in VERSIONS} == {(wanted, reason)}


ONE = {"NCCL_SYM_KERNEL": "AllReduce_AGxLL_R"}
NEWEST: list[tuple[str, str | None, dict[str, Any]]] = [
    *((S, None, {"operation": "all_gather", "dtype": dtype}) for dtype in ("int64", "float64", "bool")),
    (P, "size", {"operation": "all_gather", "nbytes": 8 * GB}),  # 64 GiB of all ranks together
    (S, None, {"operation": "all_gather", "nbytes": 8 * GB - 1}),
    (S, None, {"nbytes": 8 * GB}),
    (P, "size", {"nbytes": 64 * GB}),
    (P, "windows", {"windows": "send", "nbytes": KB, "grouped": True}),  # a group has no LL kernels
    (S, "in_windows", {"operation": "all_gather", "windows": "receive", "nbytes": KB, "grouped": True}),
    (
        P,
        "setting",
        {"operation": "reduce_scatter", "domain": "several", "settings": {"NCCL_SYM_GIN_KERNELS_ENABLE": "0"}},
    ),
    *((P, "setting", {"settings": {name: "0"}}) for name in ("NCCL_WIN_ENABLE", "NCCL_CUMEM_ENABLE")),
    *(
        (S, "in_windows", {"settings": {name: value}})
        for name in ("NCCL_WIN_ENABLE", "NCCL_CUMEM_ENABLE")
        for value in ("1", "what")
    ),
    (P, "setting", {"operation": "all_gather", "settings": ONE}),
    (D, "setting", {"settings": ONE}),
    (S, "in_windows", {"settings": {"NCCL_SYM_KERNEL": "^"}}),
    (S, None, {"policy": 2}),  # the copy engine reduces nothing
    (S, None, {"operation": "reduce_scatter", "policy": 2}),
    (C, None, {"operation": "all_to_all", "settings": {"NCCL_CTA_POLICY": "2"}}),
    (C, None, {"operation": "all_to_all", "settings": {"NCCL_CTA_POLICY": "efficiency|zero"}}),
    (P, None, {"operation": "all_to_all", "settings": {"NCCL_CTA_POLICY": "0"}, "policy": 2}),
    (D, "large", {"operation": "all_gather", "capability": None}),
    (P, "version", {"version": 22605}),
    (P, "empty", {"nbytes": 0}),
    (P, "one_rank", {"ranks": 1}),
    (S, None, {"operation": "all_gather_into_tensor"}),  # torch's names
    (S, None, {"operation": "reduce_scatter_tensor"}),
    (P, None, {"operation": "all_to_all_single"}),
    (D, "cost_model", {"nbytes": NEVER_LL - 1, "version": 22902}),  # short messages, also with both windows
    (S, None, {"nbytes": NEVER_LL, "version": 22902}),
    (S, None, {"nbytes": KB, "version": 22907}),  # 2.29.7 mended that
    (S, None, {"reduction": "avg", "version": 23003}),
    *((P, "operation", {**BETWEEN, "version": version}) for version in VERSIONS[:3]),
    (D, "domain", {**BETWEEN, "version": VERSIONS[3]}),  # from 2.30.7 on NCCL may copy between domains
]


@pytest.mark.parametrize(("wanted", "reason", "call"), NEWEST)
def test_a_rule_of_one_version(wanted: str, reason: str | None, call: dict[str, Any]) -> None:
    """Of 2.29.7, unless the call says another one."""
    found = ask(**call)
    assert found[0] == wanted
    assert reason in (None, found[1])


@pytest.mark.parametrize(
    ("call", "before", "since"),
    [
        ({"domain": "peers"}, S, P),
        ({"operation": "all_gather", "windows": "receive"}, P, S),
        ({"windows": "none", "nbytes": KB, "settings": {"NCCL_SYM_NOWIN_ENABLE": "1"}}, P, D),
        ({"operation": "all_gather", "domain": "several"}, P, D),
        ({"operation": "gather", "windows": "receive", "policy": 2}, P, C),
        ({"operation": "all_gather", "capability": 100}, S, C),
    ],
)
def test_what_2_29_2_began(call: dict[str, Any], before: str, since: str) -> None:
    """The first 2.29 differs from the last 2.28."""
    assert (kind(**call, version=22809), kind(**call, version=22902)) == (before, since)


def test_one_host_stands_for_nvlink_and_says_so() -> None:
    """From 2.29.2 on, where NVLink matters, the sentence names what is taken for granted."""
    call: dict[str, Any] = {"sends_in_window": True, "receives_in_window": True, "nbytes": MB, "ranks": 2}
    new, old = (path_of("all_reduce", version=version, domain="one_host", **call) for version in (22907, 22809))
    assert (new.kind, old.kind) == (S, S)
    assert "taken for granted" in new.text
    assert "taken for granted" not in old.text


@pytest.mark.parametrize("more", [{"operation": "add"}, {"reduction": "mean"}, {"domain": "here"}])
def test_what_the_table_does_not_know(more: dict[str, Any]) -> None:
    """A ValueError names it, and what is known."""
    with pytest.raises(ValueError, match=r"is '(add|mean|here)': give one of \w+, "):
        ask(**more)


def test_the_page_has_the_rules() -> None:
    """All of them."""
    text = (Path(__file__).parents[2] / "docs" / "symmetric.md").read_text(encoding="utf-8")
    assert all(rule.text in text for rule in RULES.values())
