"""Which frameworks are chosen, and how names of their modules are replaced, with modules as small as they can be."""

import importlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tracehook.integrations import choice, entry, megatron, sglang, vllm
from tracehook.integrations.replacing import replace, when_imported
from tracehook.log import stderr
from tracehook.symmetric_memory.scope import NoScope
from tracehook.symmetric_memory.state import Switch

NAMES = [
    "SymmetricMemoryContext", "describe_registration_in_progress", "disable_symmetric_memory_context",
    "restore_symmetric_memory_context", "is_tensor_in_symmetric_mempool", "prealloc_symmetric_memory_pool",
    "allocate_symmetric_buffer",
]  # fmt: skip


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave neither finders nor modules behind."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(stderr, "_said", {})
    monkeypatch.setattr(entry, "_seen", set())
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def module(name: str, **content: Any) -> ModuleType:
    """Make a module, with its packages, that can be imported by its name."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        made = sys.modules.setdefault(".".join(parts[:end]), ModuleType(".".join(parts[:end])))
        made.__path__ = []
    vars(made).update(content)
    return made


def own(names: Sequence[str]) -> dict[str, Any]:
    """Return functions of a framework, each an object of its own."""
    return {name: lambda *given: ("own", *given) for name in names}


def choose(monkeypatch: pytest.MonkeyPatch, names: str, on: bool = True) -> None:
    """Set the variable; let tracehook be on."""
    monkeypatch.setenv(choice.VARIABLE, names)
    monkeypatch.setattr(Switch, "host", object() if on else None)


@pytest.mark.parametrize(
    ("names", "chosen"),
    [("sglang", ["sglang"]), ("vllm, megatron", ["vllm", "megatron"]), ("auto", ["sglang", "vllm", "megatron"])],
)
def test_the_variable_chooses(monkeypatch, names, chosen):
    """Frameworks that it does not name, and all of them where it is not understood, stay as they are."""
    choose(monkeypatch, names)
    assert [name for name in ("sglang", "vllm", "megatron") if choice.is_chosen(name)] == chosen
    choose(monkeypatch, "vllm,other")
    assert not choice.is_chosen("vllm")


def test_without_tracehook_one_line_says_so(monkeypatch, capsys):
    """The variable alone replaces nothing: the line names the other one."""
    choose(monkeypatch, "auto", on=False)
    before = list(sys.meta_path)
    for _ in range(2):
        entry.vllm()
    assert sys.meta_path == before
    assert capsys.readouterr().err == (
        "tracehook: SYMM_REGISTER_INTEGRATIONS names vllm, but tracehook is off in this process, so vllm stays as it "
        "is: set SYMM_REGISTER_HOOK=1 too\n"
    )


def test_without_the_variable_nothing_is_imported():
    """What the frameworks call in each process loads neither torch nor the rest of tracehook."""
    program = (
        "import sys; from tracehook.integrations import entry; entry.sglang(), entry.vllm(), entry.megatron(); "
        "print([name for name in sys.modules if name == 'torch' or name.startswith('tracehook')])"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env={})
    assert told.stdout.strip() == "['tracehook', 'tracehook.integrations', 'tracehook.integrations.entry']"


def test_a_name_is_replaced_wherever_the_object_was_imported():
    """Names that the module lacks are left out; other objects of the same name stay."""

    def old() -> None: ...

    def new() -> None: ...

    theirs = module("framework.memory", scope=old)
    importer = module("framework.layers", scope=old, other=old)
    stranger = module("framework.others", scope=choose)
    assert replace(theirs, {"scope": new, "unknown": new}) == ["scope"]
    assert (theirs.scope, importer.scope, importer.other, stranger.scope) == (new, new, new, choose)
    assert not hasattr(theirs, "unknown")


def test_a_module_is_changed_at_the_end_of_its_import(tmp_path, monkeypatch):
    """It keeps its own loader, and the finder goes: a second import is like any other. If it is there: now."""
    (tmp_path / "imported_later.py").write_text("def scope(): return 'old'\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.meta_path)
    when_imported("imported_later", lambda found: setattr(found, "scope", lambda: "new"))
    assert importlib.util.find_spec("imported_later") is not None  # a look is no import
    found = importlib.import_module("imported_later")
    assert found.scope() == "new"
    assert sys.meta_path == before
    assert found.__spec__ is not None
    assert type(found.__loader__) is type(found.__spec__.loader) is importlib.machinery.SourceFileLoader
    theirs = module("framework.memory", scope=choose)
    before = list(sys.meta_path)
    when_imported("framework.memory", lambda found: setattr(found, "scope", clean))
    assert theirs.scope is clean
    assert sys.meta_path == before


def test_an_import_goes_on_whatever_fails(tmp_path, monkeypatch, capsys):
    """A framework that has other names than expected is imported as it is, and one line says why."""
    (tmp_path / "other_version.py").write_text("there = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    when_imported("other_version", lambda found: found.missing)
    assert importlib.import_module("other_version").there
    assert capsys.readouterr().err.startswith("tracehook: other_version stays as it is: AttributeError: ")


class _Registry:
    """SGLang's registry, which only collects here."""

    def __init__(self) -> None:
        self.hooks: dict[str, str] = {}

    def register(self, target: str, hook: Any, kind: str) -> None:
        assert hook.__name__ == target.rpartition(".")[2]
        self.hooks[target] = kind


@pytest.mark.parametrize("left_out", [[], ["allocate_symmetric_buffer", "describe_registration_in_progress"]])
def test_sglang_replaces_by_its_own_registry(monkeypatch, left_out):
    """Its load_plugins applies the hooks later. Older versions lack some names, of which it hears nothing."""
    choose(monkeypatch, "sglang")
    names = [name for name in NAMES if name not in left_out]
    theirs = module(sglang.MODULE, **own(names))
    registry = _Registry()
    module(
        "sglang.srt.plugins.hook_registry", HookRegistry=registry, HookType=SimpleNamespace(REPLACE="replace", AFTER="")
    )
    entry.sglang()
    assert registry.hooks == {f"{sglang.MODULE}.{name}": "replace" for name in names}
    assert theirs.SymmetricMemoryContext() == ("own",)


def test_sglang_without_a_registry_is_replaced_directly(monkeypatch):
    """All names are tracehook's then."""
    choose(monkeypatch, "sglang")
    module("sglang.srt.plugins")
    theirs = module(sglang.MODULE, **own(NAMES))
    entry.sglang()
    assert [getattr(theirs, name).__module__ for name in NAMES] == [sglang.__name__] * len(NAMES)


class Own(NoScope):
    """A framework's own context."""

    def __init__(self, *given: Any) -> None:
        self.given = given


@pytest.mark.parametrize("problem", [None, RuntimeError("tracehook: no store"), ValueError("no communicator")])
def test_where_tracehook_has_no_memory_the_framework_serves(monkeypatch, capsys, problem):
    """Its own context is entered, its own answers are given; one line says why, if there is a reason."""

    def symmetric(**_: Any) -> NoScope:
        if problem is not None:
            raise problem
        from tracehook.symmetric_memory.scope import NO_SCOPE

        return NO_SCOPE

    monkeypatch.setattr("tracehook.integrations.serving.symmetric", symmetric)
    group = SimpleNamespace(world_size=2)
    theirs = module(sglang.MODULE, SymmetricMemoryContext=Own, **own(NAMES[1:]))
    ours = sglang.replacements(theirs)
    for _ in range(2):
        with ours["SymmetricMemoryContext"](group) as entered:
            assert entered._scope.given == (group,)
            assert ours["describe_registration_in_progress"]() == ("own",)
            assert ours["disable_symmetric_memory_context"]() == ("own",)
    platform = SimpleNamespace(is_cuda=lambda: True)
    theirs = module(
        vllm.MODULE,
        nccl_symm_mem_context=Own,
        is_symmetric_memory_tensor=bool,
        is_symmetric_memory_enabled=lambda: True,
        current_platform=platform,
    )
    with vllm.replacements(theirs)["nccl_symm_mem_context"](group) as entered:
        assert entered._scope.given == (group,)
    said = capsys.readouterr().err
    assert said.count("makes its symmetric memory itself") == (problem is not None)


THEIRS = [
    "init", "create_nccl_mem_pool", "register_mem_pool", "deregister_mem_pool", "nccl_mem",
    "MultiGroupMemPoolAllocator", "MemPoolAllocatorWithoutRegistration",
]  # fmt: skip


def test_megatron_is_replaced_when_it_is_imported(monkeypatch):
    """It has no plug-ins, so tracehook's start waits for the import; a second start does nothing more."""
    choose(monkeypatch, "megatron")
    before = len(sys.meta_path)
    for _ in range(2):
        entry.megatron()
    assert len(sys.meta_path) == before + 1
    monkeypatch.setattr(entry, "_seen", set())
    theirs = module(megatron.MODULE, **own(THEIRS))
    entry.megatron()
    assert [getattr(theirs, name).__module__ for name in THEIRS] == [megatron.__name__] * len(THEIRS)


@pytest.mark.parametrize("memory", [None, object()])
def test_megatron_keeps_what_is_not_symmetric(monkeypatch, memory):
    """Its own functions get its own pools: one that it made, or one that is made when a stand-in has to be one."""
    monkeypatch.setattr(Switch, "memory", memory)
    monkeypatch.setattr(Switch, "host", memory)
    ours = megatron.replacements(module(megatron.MODULE, **own(THEIRS)))
    pool = ours["create_nccl_mem_pool"](False)
    assert pool == ("own", False)
    assert ours["nccl_mem"](pool, True, "cuda", "group", False) == ("own", pool, True, "cuda", "group", False)
    assert ours["MemPoolAllocatorWithoutRegistration"](pool) == ("own", pool)
    assert ours["register_mem_pool"](pool, "group", False) is None
    either = ours["create_nccl_mem_pool"]()
    made = ("own",) if memory is not None else ("own", None)
    assert ours["MultiGroupMemPoolAllocator"](either, ["group"], False) == ("own", made, ["group"], False)
    if memory is None:
        assert ours["MultiGroupMemPoolAllocator"](either, ["group"]) == ("own", made, ["group"], True)
