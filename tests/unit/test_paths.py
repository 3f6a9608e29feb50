"""Which path NCCL takes for a collective: the table of its rules, by version."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from tracehook.nccl.paths import path_of
from tracehook.nccl.rules import NEVER_LL, RULES

DOCS = Path(__file__).parents[2] / "docs"
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


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("operation", ["all_reduce", "reduce_scatter"])
@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [
        ("float32", S),
        ("torch.bfloat16", S),
        ("float16", S),
        ("float8_e4m3fn", S),
        ("complex64", S),
        ("float64", P),
        ("complex128", P),
        ("int32", P),
        ("int64", P),
        ("uint8", P),
        ("bool", P),
    ],
)
def test_the_types_that_are_reduced(version: int, operation: str, dtype: str, wanted: str) -> None:
    """Floats of 32 bits and fewer have symmetric kernels, in all versions."""
    assert ask(operation, dtype=dtype, version=version) == (wanted, "in_windows" if wanted == S else "dtype")


def test_all_gather_takes_every_type() -> None:
    """Nothing is added there."""
    assert {kind("all_gather", dtype=dtype) for dtype in ("int64", "float64", "bool")} == {S}


@pytest.mark.parametrize("reduction", ["min", "max", "product", "premul_sum"])
def test_the_reductions_without_a_symmetric_kernel(reduction: str) -> None:
    """All but the sum, and the average in newer versions."""
    assert {ask(reduction=reduction, version=version) for version in VERSIONS} == {(P, "reduction")}


def test_the_average_is_symmetric_from_2_30_3_on() -> None:
    """Before, NCCL multiplies first, for which there is no symmetric kernel."""
    kinds = [kind(reduction="ReduceOp.AVG", version=version) for version in (*VERSIONS[:3], 23003)]
    assert kinds == [P, P, P, S]


def test_64_gib_are_too_many() -> None:
    """The bytes of all ranks count, but for all_reduce."""
    assert ask("all_gather", nbytes=8 * GB) == (P, "size")
    assert kind("all_gather", nbytes=8 * GB - 1) == S
    assert kind("all_reduce", nbytes=8 * GB) == S
    assert ask("all_reduce", nbytes=64 * GB) == (P, "size")


@pytest.mark.parametrize(("version", "wanted"), list(zip(VERSIONS, (P, S, S, S), strict=True)))
def test_a_collective_in_a_group(version: int, wanted: str) -> None:
    """2.27 has symmetric kernels only for a collective that is alone in its group."""
    assert kind(grouped=True, version=version) == wanted


def test_a_group_has_no_ll_kernels() -> None:
    """What would be left to an LL kernel is plain in a group."""
    assert ask("all_reduce", "send", KB, grouped=True) == (P, "windows")
    assert ask("all_gather", "receive", KB, grouped=True) == (S, "in_windows")


@pytest.mark.parametrize(("version", "wanted"), list(zip(VERSIONS, (S, S, P, P), strict=True)))
def test_peers_without_nvlink(version: int, wanted: str) -> None:
    """From 2.29.2 on symmetric kernels need direct NVLink."""
    assert kind(domain="peers", version=version) == wanted


def test_nobody_knows_the_domain() -> None:
    """Where windows and type would do, the path depends on the domain; where they do not, it is plain."""
    assert {ask(domain=None, version=version) for version in VERSIONS} == {(D, "domain")}
    assert ask(domain=None, dtype="int32") == (P, "dtype")


@pytest.mark.parametrize(
    ("operation", "windows", "wanted"),
    [
        ("all_reduce", "both", (P, P, P, P)),
        ("all_gather", "both", (P, P, D, D)),
        ("all_gather", "receive", (P, P, P, P)),
        ("reduce_scatter", "both", (P, P, S, S)),
        ("reduce_scatter", "send", (P, P, S, S)),
        ("reduce_scatter", "receive", (P, P, P, P)),
    ],
)
def test_between_domains(operation: str, windows: str, wanted: tuple[str, ...]) -> None:
    """From 2.29 on there are kernels between NVLink domains, none of them for all_reduce."""
    assert tuple(kind(operation, windows, domain="several", version=version) for version in VERSIONS) == wanted


def test_between_domains_without_gin_kernels() -> None:
    """A setting switches them off."""
    found = ask("reduce_scatter", domain="several", settings={"NCCL_SYM_GIN_KERNELS_ENABLE": "0"})
    assert found == (P, "setting")


@pytest.mark.parametrize("setting", ["NCCL_WIN_ENABLE", "NCCL_CUMEM_ENABLE"])
def test_settings_that_switch_symmetric_memory_off(setting: str) -> None:
    """They are the reason, whatever else there is; another value is none."""
    assert ask(settings={setting: "0"}) == (P, "setting")
    assert ask(settings={setting: "1"}) == ask(settings={setting: "what"}) == (S, "in_windows")


def test_a_kernel_that_is_asked_for() -> None:
    """NCCL_SYM_KERNEL leaves other operations without a symmetric kernel."""
    assert ask("all_gather", settings={"NCCL_SYM_KERNEL": "AllReduce_AGxLL_R"}) == (P, "setting")
    assert ask("all_reduce", settings={"NCCL_SYM_KERNEL": "AllReduce_AGxLL_R"}) == (D, "setting")
    assert ask("all_reduce", settings={"NCCL_SYM_KERNEL": "^"}) == (S, "in_windows")


def test_kernels_without_windows() -> None:
    """NCCL_SYM_NOWIN_ENABLE=1 lets LL kernels run for short messages, from 2.29.2 on."""
    settings = {"NCCL_SYM_NOWIN_ENABLE": "1"}
    kinds = [kind(windows="none", nbytes=KB, version=version, settings=settings) for version in VERSIONS]
    assert kinds == [P, P, D, D]


def test_2_29_2_asks_the_cost_model_with_both_windows_too() -> None:
    """Short messages may be plain although both buffers lie in windows; 2.29.7 mended that."""
    assert ask(nbytes=NEVER_LL - 1, version=22902) == (D, "cost_model")
    assert kind(nbytes=NEVER_LL, version=22902) == S
    assert kind(nbytes=KB, version=22907) == S


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


@pytest.mark.parametrize("operation", ["all_gather", "all_to_all", "gather", "scatter"])
@pytest.mark.parametrize(("windows", "wanted"), [("both", (C, C, C)), ("receive", (P, C, C)), ("send", (P, P, P))])
def test_policy_zero_copies(operation: str, windows: str, wanted: tuple[str, ...]) -> None:
    """From 2.28.3 on the copy engine takes them with both windows, from 2.29.2 on with the receive window."""
    found = [kind(operation, windows, 256 * MB, version=version, policy=2) for version in VERSIONS]
    assert found == [S if (operation, windows) == ("all_gather", "both") else P, *wanted]


def test_policy_zero_leaves_reductions_alone() -> None:
    """The copy engine adds nothing."""
    assert kind("all_reduce", policy=2) == kind("reduce_scatter", policy=2) == S


def test_the_setting_of_the_policy_overrides_the_configuration() -> None:
    """It has a number, or from 2.29 on names."""
    assert kind("all_to_all", settings={"NCCL_CTA_POLICY": "2"}) == C
    assert kind("all_to_all", settings={"NCCL_CTA_POLICY": "efficiency|zero"}) == C
    assert kind("all_to_all", settings={"NCCL_CTA_POLICY": "0"}, policy=2) == P


def test_policy_zero_between_domains() -> None:
    """From 2.30.7 on NCCL may copy there too, with both windows."""
    found = [ask("all_to_all", domain="several", policy=2, version=version) for version in VERSIONS]
    assert found == [(P, "operation")] * 3 + [(D, "domain")]


@pytest.mark.parametrize(("version", "wanted"), list(zip(VERSIONS, (S, S, C, C), strict=True)))
def test_a_large_all_gather_on_blackwell(version: int, wanted: str) -> None:
    """More than 8 Mi elements are copied, whatever the policy; a setting changes the number."""
    call: dict[str, Any] = {"capability": 100, "itemsize": 4, "version": version}
    assert kind("all_gather", nbytes=33 * MB, **call) == wanted
    assert kind("all_gather", nbytes=32 * MB, **call) == S
    assert kind("all_gather", nbytes=32 * MB, settings={"NCCL_SYM_CE_THRESHOLD": "1024"}, **call) == wanted


def test_a_large_all_gather_on_an_unknown_device() -> None:
    """The path depends on the device."""
    assert ask("all_gather", capability=None) == (D, "large")


@pytest.mark.parametrize(
    ("more", "reason"), [({"version": 22605}, "version"), ({"nbytes": 0}, "empty"), ({"ranks": 1}, "one_rank")]
)
def test_where_there_is_nothing_to_choose(more: dict[str, int], reason: str) -> None:
    """An old NCCL, no bytes, or one rank: plain."""
    assert ask(**more) == (P, reason)


def test_one_host_stands_for_nvlink_and_says_so() -> None:
    """From 2.29.2 on, where NVLink matters, the sentence names what is taken for granted."""
    call: dict[str, Any] = {"sends_in_window": True, "receives_in_window": True, "nbytes": MB, "ranks": 2}
    new, old = (path_of("all_reduce", version=version, domain="one_host", **call) for version in (22907, 22809))
    assert (new.kind, old.kind) == (S, S)
    assert "taken for granted" in new.text
    assert "taken for granted" not in old.text


def test_torchs_names_are_known() -> None:
    """The functions of torch.distributed stand for NCCL's calls."""
    assert kind("all_gather_into_tensor") == kind("reduce_scatter_tensor") == S
    assert kind("all_to_all_single") == P


@pytest.mark.parametrize("more", [{"operation": "add"}, {"reduction": "mean"}, {"domain": "here"}])
def test_what_the_table_does_not_know(more: dict[str, str]) -> None:
    """A ValueError names it, and what is known."""
    with pytest.raises(ValueError, match=r"is '(add|mean|here)': give one of \w+, "):
        ask(**more)


def test_the_page_has_the_rules() -> None:
    """docs/symmetric.md is what docs/write_tables.py writes."""
    script = runpy.run_path(str(DOCS / "write_tables.py"))
    text = (DOCS / "symmetric.md").read_text(encoding="utf-8")
    assert script["symmetric_page"](text) == text
    assert text.count(script["BEGIN_RULES"]) == text.count(script["END_RULES"]) == 1
    assert all(rule.text in text for rule in RULES.values())
