"""What the emulated runtime promises the emulated NCCL about captures, and host functions in graphs, without torch."""

import ctypes
import threading
from ctypes import byref, c_int, c_size_t, c_ulonglong, c_void_p

from common import must, tell

runtime = ctypes.CDLL(None)
Function = ctypes.CFUNCTYPE(None, c_void_p)
GLOBAL, THREAD_LOCAL, RELAXED = range(3)
UNSUPPORTED, INVALIDATED = 900, 901

heard: list[str] = []
main = threading.get_ident()


def hears(word: str) -> object:
    """Return a function that notes a word, and whether the main thread called it."""
    return Function(lambda _: heard.append(word + ("" if threading.get_ident() == main else " elsewhere")))


WORK, LAUNCHED, DROPPED, HOST = (hears(word) for word in ("work", "launched", "dropped", "host"))


def new_stream() -> c_void_p:
    stream = c_void_p()
    must(runtime.cudaStreamCreateWithFlags(byref(stream), 1))
    return stream


def begin(stream: c_void_p, mode: int = GLOBAL) -> None:
    must(runtime.cudaStreamBeginCapture(stream, mode))


def end(stream: c_void_p) -> tuple[int, c_void_p]:
    graph = c_void_p()
    return runtime.cudaStreamEndCapture(stream, byref(graph)), graph


def enqueue(stream: c_void_p) -> None:
    runtime.emu_stream_enqueue_replayable(stream, WORK, LAUNCHED, DROPPED, None)


def told() -> list[str]:
    words = list(heard)
    heard.clear()
    return words


def under_way(mode: int = GLOBAL) -> int:
    """Return what a new thread of a mode is told about captures."""
    answers: list[int] = []

    def ask() -> None:
        runtime.cudaThreadExchangeStreamCaptureMode(byref(c_int(mode)))
        answers.append(runtime.emu_capture_under_way())

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return answers[0]


must(runtime.cudaFree(None))
stream, launches = new_stream(), new_stream()

begin(stream)
must(runtime.cudaLaunchHostFunc(stream, HOST, None))
enqueue(stream)
must(runtime.cudaLaunchHostFunc(stream, HOST, None))
tell(captures=[runtime.emu_stream_capturing(each) for each in (stream, launches, None)])
status, graph = end(stream)
must(status)
tell(captured=told(), after=[runtime.emu_stream_capturing(stream), runtime.emu_capture_under_way()])

instances = [c_void_p(), c_void_p()]
for instance in instances:
    must(runtime.cudaGraphInstantiateWithFlags(byref(instance), graph, c_ulonglong(0)))
count = c_size_t()
must(runtime.cudaGraphGetNodes(graph, None, byref(count)))

# Until the gate opens, a host function holds up what the launch gives its stream: the order of the words is no chance.
gate = threading.Event()
WAIT = Function(lambda _: gate.wait())
must(runtime.cudaLaunchHostFunc(launches, WAIT, None))
must(runtime.cudaGraphLaunch(instances[0], launches))
at_launch = told()
gate.set()
must(runtime.cudaStreamSynchronize(launches))
tell(nodes=count.value, at_launch=at_launch, later=told())

# One instance on two streams: the second launch comes after the first, which a host function holds up.
gate.clear()
must(runtime.cudaLaunchHostFunc(launches, WAIT, None))
must(runtime.cudaGraphLaunch(instances[0], launches))
must(runtime.cudaGraphLaunch(instances[0], stream))
held = [runtime.cudaStreamQuery(each) for each in (launches, stream)]
started = told()
gate.set()
must(runtime.cudaStreamSynchronize(stream))
tell(held=held, started=started, both=told())

must(runtime.cudaGraphDestroy(graph))
must(runtime.cudaGraphExecDestroy(instances[0]))
kept = told()
gate.clear()
must(runtime.cudaLaunchHostFunc(launches, WAIT, None))
must(runtime.cudaGraphLaunch(instances[1], launches))
must(runtime.cudaGraphExecDestroy(instances[1]))
in_flight = told()
gate.set()
must(runtime.cudaStreamSynchronize(launches))
tell(kept=kept, in_flight=in_flight, gone=told(), again=runtime.cudaGraphExecDestroy(instances[1]))

# An object of the program that a graph holds, and then only an instance of it.
KEPT = hears("gone")
held_object, own_object = c_void_p(), c_void_p()
begin(stream)
must(runtime.cudaLaunchHostFunc(stream, HOST, None))
graph = end(stream)[1]
for place in (held_object, own_object):
    must(runtime.cudaUserObjectCreate(byref(place), None, KEPT, 1, 1))
must(runtime.cudaGraphRetainUserObject(graph, held_object, 1, 1))  # its only reference goes over
must(runtime.cudaGraphRetainUserObject(graph, own_object, 1, 0))
instance = c_void_p()
must(runtime.cudaGraphInstantiateWithFlags(byref(instance), graph, c_ulonglong(0)))
must(runtime.cudaGraphDestroy(graph))
too_many = runtime.cudaUserObjectRelease(own_object, 9)
must(runtime.cudaUserObjectRelease(own_object, 1))
with_instance = told()
must(runtime.cudaGraphExecDestroy(instance))
tell(too_many=too_many, with_instance=with_instance, without=told(), twice=runtime.cudaUserObjectRelease(own_object, 1))

# Who is told of a capture, and what the end of a spoilt one says.
modes = {}
for mode in (GLOBAL, THREAD_LOCAL, RELAXED):
    begin(stream, mode)
    modes[mode] = [runtime.emu_capture_under_way(), *(under_way(own) for own in (GLOBAL, THREAD_LOCAL, RELAXED))]
    must(end(stream)[0])
tell(modes=[modes[mode] for mode in (GLOBAL, THREAD_LOCAL, RELAXED)])

begin(stream)
enqueue(stream)
runtime.emu_capture_invalidate()
enqueue(stream)
refused = told()
tell(refused=refused, spoilt=[runtime.emu_stream_capturing(stream), end(stream)[0] == INVALIDATED], dropped=told())

begin(stream)
pointer = c_void_p()
forbidden = runtime.cudaMalloc(byref(pointer), c_size_t(4096))
tell(malloc=[forbidden == UNSUPPORTED, end(stream)[0] == INVALIDATED])
begin(stream)
exchanged = c_int(RELAXED)
must(runtime.cudaThreadExchangeStreamCaptureMode(byref(exchanged)))
must(runtime.cudaMalloc(byref(pointer), c_size_t(4096)))
must(runtime.cudaThreadExchangeStreamCaptureMode(byref(exchanged)))
tell(relaxed=[exchanged.value, end(stream)[0]])

begin(stream)
runtime.emu_stream_enqueue(stream, WORK, None)
tell(unrepeatable=end(stream)[0] == INVALIDATED)
must(runtime.cudaStreamSynchronize(stream))
tell(once=told())
