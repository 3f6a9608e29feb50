"""The one service of a process: starts the native side, the log, and the hook when CUDA comes up."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any

from tracehook import settings
from tracehook.hook import (
    background,
    job,
    known_bugs,
    library,
    log_begin,
    program_end,
    registrants,
    registration,
    stacks,
    status,
)
from tracehook.hook.extension import EXTENSIONS, Extension, tell_of_birth
from tracehook.hook.namer import Namer
from tracehook.hook.once import Once
from tracehook.log import clock, ring_place
from tracehook.log.journal import Journal
from tracehook.log.stderr import warn
from tracehook.log.tables import MODES, REASONS, number_of
from tracehook.log.text import encodable

if TYPE_CHECKING:
    from types import ModuleType

    from tracehook._core import Totals


class Service:
    """See :func:`tracehook.enable`. All methods may be called from any thread."""

    def __init__(self, config: settings.Settings) -> None:
        self.settings = config
        # Held while starting and switching. Never by the allocator's callback or the interposer, which are native.
        self._lock = threading.RLock()
        # Whoever enables it second returns when it is enabled; taken with no other lock held.
        self._enabling = threading.RLock()
        # One switch or detach at a time; a signal's handler may ask for another one meanwhile.
        self._switching = threading.RLock()
        self.switched = 0.0  # when registrations were switched on or off last
        self._core: ModuleType | None = None
        self._journal: Journal | None = None
        self._record_only = False
        self._blind_by = ""  # the reason why calls into NCCL pass us by: nothing may be registered beside them
        self._forked = False
        self._done_attaching = False
        self._attached_names = 0
        self.is_enabled = False

    # --- starting ---

    def enable(self) -> None:
        """Start, or switch registration on again; see :func:`tracehook.enable`."""
        import torch

        with self._enabling:
            self._enable(torch)

    def _enable(self, torch: Any) -> None:
        with self._lock:
            if self._forked and self._done_attaching:
                raise RuntimeError(
                    "tracehook: this process was forked from one that had initialised CUDA, and cannot use it: "
                    "use the spawn start method"
                )
            starts = self._core is None or self._forked
            if starts:
                self._start(torch)
        self.is_enabled = True
        for extension in EXTENSIONS:
            extension.enabled(self)
        if starts:
            # Without our lock: torch takes one of its own here, under which it calls _attach(), which takes ours.
            self._attach_when_cuda_is_up(torch)
        else:
            self._switch(on=True)

    def _start(self, torch: Any) -> None:
        library.directory()  # says why, if there is no native part
        from tracehook import _core

        named = job.join() if settings.needs_job(self.settings) else job.NONE
        path, descriptor = log_begin.new_log(self.settings.log, named.id)
        rules = registration.choose_rules(self.settings)
        begin = log_begin.begin_fields(torch, _core.nccl_version(), self.settings, named, rules)
        ring = ring_place.choose(path) if path else None
        bound = log_begin.bound(self.settings)
        _core.make_process(os.fsencode(ring or ""), bound.ring_events)
        _core.wait_at_end()
        if path and ring and ring.parent != path.parent:
            begin["ring"] = encodable(str(ring))
        if _core.ring_error():
            warn(f"events are kept in memory only, so a kill would lose the last ones: {_core.ring_error()}")
        elif ring:
            _core.note_signals()
            _core.note_exits()
        self._core = _core
        self._forked = False
        self._done_attaching = False
        namer = Namer(_core, has_rank=begin["rank"] is not None)
        self._journal = Journal(_core, path, begin, descriptor, tell_of_birth, namer, bound.beside(path, ring))
        for extension in EXTENSIONS:
            extension.begun(self, self._journal)
        self._journal.start()
        program_end.follow(_core, self._journal)
        if path and not _core.ring_error():
            stacks.begin(_core, path)
        if torch.version.cuda is None:
            self._note("no_cuda", f"torch {torch.__version__}")
            return
        self._record_only = registrants.torch_hook_is_on() and self.settings.local in ("auto", "all", "observe")
        if self._record_only:
            _core.set_registering(False)
        mode = "observe" if self._record_only else self.settings.local
        _core.set_local_mode(MODES.index(mode))
        registration.take_over_memory(_core, self.settings, torch.cuda.is_initialized())
        registration.begin(_core, self.settings)
        if self.settings.check:
            _core.check_at_births()
        guard = self.settings.guard
        _core.set_window_guard(self.settings.timeout if guard != "off" else 0.0, guard == "on")
        reason, detail = self._interpose(_core)
        if reason:
            self._note(reason, detail)
        if reason and reason != "no_nccl":
            self._blind_by = reason
            _core.set_registering(False)
        self._mark(True)

    @staticmethod
    def _interpose(core: Any) -> tuple[str, str]:
        """Return why calls into NCCL cannot be followed, as the name of a reason, and a detail; or two empty texts."""
        if in_front := core.nccl_in_front():
            return "nccl_preloaded", str(in_front)
        try:
            core.interpose()
        except RuntimeError as problem:
            return "no_nccl" if core.nccl_missing() else "slots_refused", str(problem)
        return "", ""

    def _attach_when_cuda_is_up(self, torch: Any) -> None:
        if torch.version.cuda is None:
            return
        lazy_call = getattr(torch.cuda, "_lazy_call", None)
        if lazy_call is not None:
            # At once if CUDA is up; else when the program brings it up. We never do.
            lazy_call(self._attach)
        elif torch.cuda.is_initialized():
            self._attach()
        else:
            self._note("attach_failed", "torch.cuda has no _lazy_call; call tracehook.enable() after CUDA is up")

    def _attach(self) -> None:
        """Run by torch while CUDA comes up: it holds a lock of its own, and an exception would make that fail."""
        try:
            import torch

            from tracehook.hook import groups

            with self._lock:
                if self._forked:
                    # Forked before CUDA came up, as launchers do: a process like any other, with a log of its own.
                    self._start(torch)
                    if not self.is_enabled:  # by disable(), here or in the parent
                        self._native().set_registering(False)
                        self._mark(False)
                if not self._done_attaching:
                    self._done_attaching = True
                    self._attach_to_allocator(str(torch.__version__))
                    groups.adopt_existing(self._native())
                    with contextlib.suppress(Exception):  # its files may be out of reach by now
                        known_bugs.warn_of_dangers(self.settings, str(torch.__version__), self._native().nccl_version())
        except Exception as problem:
            self._note("attach_failed", str(problem))

    def _attach_to_allocator(self, version: str) -> None:
        import torch

        core = self._native()
        registration.cuda_is_up(core, self.settings, torch.cuda.device_count())
        # Said only now: a launcher that imports torch and never uses CUDA is not concerned.
        if self._record_only:
            self._note("torch_hook")
        if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") == "1":
            # torch reads it at each allocation; before 2.15 its isEnabled() does not tell.
            self._note("no_caching")
        path = library.path_for(version)
        if path is None:
            have = ", ".join(library.available()) or "none"
            self._note("no_hook_library", f"torch {version}, installed hook libraries: {have}")
            return
        try:
            reason = core.attach(os.fsencode(path), version)
        except RuntimeError as problem:
            self._note("attach_failed", str(problem))
            return
        if reason and REASONS[reason].name not in self._reasons():
            self._note(REASONS[reason].name)

    # --- switching, asking ---

    def disable(self) -> None:
        """Deregister everything; see :func:`tracehook.disable`."""
        self.is_enabled = False
        for extension in EXTENSIONS:
            extension.disabled()
        self._switch(on=False)

    def _switch(self, on: bool) -> None:
        # A lock of its own: this may wait for calls into NCCL, and status() must not wait for it.
        with self._switching:
            core = self._core
            if core is None or self._forked or core.registering() == on:
                return
            if on and (self._record_only or self._blind_by):
                return
            self.switched = clock.monotonic()
            core.set_registering(on)
            self._mark(on)

    def status(self, flush: bool = True) -> dict[str, Any]:
        """See :func:`tracehook.status`. Without `flush` it waits for no other thread's file."""
        if flush and self._journal is not None and not self._forked:
            self._journal.flush()  # what the native side has noted up to now belongs to the answer
        with self._lock:
            reasons = {name: REASONS[number_of(name)].advice for name in self._reasons()}
            out: dict[str, Any] = status.nothing() | {"state": self._state(), "reasons": reasons}
            if self._core is None or self._forked:
                return out
            out |= status.of_core(self._core) | registration.told(self._core)
            journal = self._journal
            out["log"] = str(journal.path) if journal and journal.path and not journal.failed else None
            for extension in EXTENSIONS:
                out.update(extension.status())
            return out

    def _state(self) -> str:
        if self._core is None:
            return "off"
        if self._forked:
            return "forked" if self._done_attaching else "waiting"
        if self._record_only:
            return "recording"
        if self._reasons():
            return "unsupported"
        if not self._core.registering():
            return "off"
        return "on" if self._core.attached() else "waiting"

    # --- what extensions need ---

    def open_bank(self) -> tuple[str, str] | None:
        """Open the bank of symmetric memory. Return why this process cannot have one (code, text); None if it has."""
        with self._lock:
            core = self._core
            if core is None or self._forked or not core.attached():
                return "unavailable", "the hook is not attached to the allocator (see tracehook.status())"
            missing = str(core.nccl_missing())
            if missing:
                return "no_nccl", missing
            if self._blind_by:
                return "unavailable", REASONS[number_of(self._blind_by)].advice
            refused: tuple[str, str] | None = core.open_bank(self.settings.pool_limit or 0)
            if refused is None:
                registration.keep_nccl_from_captures()
            return refused

    def push(self, event: str, **members: int) -> None:
        """Log an event, with each member of its row (cpp/events/events.def)."""
        self._native().push(event, **members)

    # --- raw communicators ---

    def attach_communicator(self, pointer: int, device: int | None, name: str | None) -> bool:
        """See :func:`tracehook.attach_communicator`."""
        import torch

        # Before our lock: asking may bring CUDA up, and torch then calls _attach() under a lock of its own.
        index = device if device is not None else torch.cuda.current_device()
        with self._lock:
            core = self.required()
            if core.nccl_missing():
                raise RuntimeError(f"tracehook: {core.nccl_missing()}")
            self._attached_names += 1
            shared_name = job.attempt() + (name if name is not None else f"attached:{self._attached_names}")
            known = core.find_communicator(pointer)
            if known is not None and not known.adopted:
                warn(f"communicator {known.key:016x} was seen when it was made: attach_communicator is not needed")
            return bool(core.adopt_communicator(pointer, index, shared_name))

    def detach_communicator(self, pointer: int) -> bool:
        """See :func:`tracehook.detach_communicator`."""
        with self._lock:
            core = self.required()
        with self._switching:  # as _switch(): this waits for calls into NCCL
            return bool(core.retire_communicator(pointer))

    def tell(self, extension: Extension) -> None:
        """Tell an extension that came late what it has missed."""
        if self._journal is not None and not self._forked:
            extension.begun(self, self._journal)
        extension.enabled(self)

    def running(self) -> Any:
        """Return the native side, or None if it does not run in this process."""
        return self._core if not self._forked else None

    # --- pieces ---

    def _native(self) -> Any:
        assert self._core is not None
        return self._core

    def _reasons(self) -> list[str]:
        return list(self._journal.reasons) if self._journal is not None and not self._forked else []

    def required(self) -> Any:
        """Return the native side.

        Raises:
            RuntimeError: it does not run in this process.

        """
        if self._core is None or self._forked:
            raise RuntimeError("tracehook is not enabled in this process: call tracehook.enable() first")
        return self._core

    def _mark(self, on: bool) -> None:
        held: Totals = self._native().totals()
        self._native().push("hook.enable" if on else "hook.disable", segments=held.segments, bytes=held.bytes)

    def _note(self, name: str, detail: str = "") -> None:
        number = number_of(name)
        if self._journal is not None:
            self._journal.say_reason(REASONS[number], detail)
        if self._core is not None:
            self._core.push(REASONS[number].event, reason=number)

    def finish(self) -> None:
        """At interpreter exit: end all threads, and close the log. No call into CUDA or NCCL; all stays registered."""
        background.end()
        if self._journal is not None and self._core is not None and not self._forked:
            core, ended = self._core, program_end.fields()
            core.log_overdue()
            counts = ("segments", "bytes", "communicators")
            self._journal.close(lambda: {name: getattr(core.totals(), name) for name in counts} | ended)
            for extension in EXTENSIONS:
                extension.ended()
            core.end_stacks()
            program_end.keep_interrupt()

    def after_fork_in_child(self) -> None:
        """Let go of everything that belongs to the parent. The native side has done so already."""
        self._lock, self._enabling, self._switching = threading.RLock(), threading.RLock(), threading.RLock()
        program_end.forget()
        for extension in EXTENSIONS:
            extension.abandon()
        self._forked = self._core is not None
        if self._journal is not None:
            self._journal.abandon()
        self.is_enabled = self.is_enabled and not self._done_attaching
        if self.is_enabled:  # torch will call _attach() here, too, when CUDA comes up
            for extension in EXTENSIONS:
                extension.enabled(self)


@Once
def service() -> Service:
    """Return the service of this process; makes it, from the environment, at the first call."""
    config, complaints = settings.from_environment()
    for line in complaints:
        warn(line)
    made = Service(config)
    os.register_at_fork(after_in_child=made.after_fork_in_child)
    atexit.register(made.finish)
    return made


def extend(extension: Extension) -> None:
    """Have `extension` follow the service of this process, which need not exist yet."""
    EXTENSIONS.append(extension)
    if service.is_made and service().is_enabled:
        service().tell(extension)


def start_from_environment() -> None:
    """Enable if the environment says so; complains about what it does not understand."""
    made = service()
    if made.settings.hook:
        made.enable()
