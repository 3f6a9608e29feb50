// Stream capture: which streams record their work instead of doing it, and what a thread must not
// do meanwhile. As on a device, except that what is recorded keeps one order, that of the calls.
//
// Called by the runtime's functions before they touch a stream or an event; any thread, except in a
// forked child. Nothing waits. What was recorded is never destroyed while the mutex is held: its
// end may call back into anything.
#pragma once

#include "cuda_abi.h"
#include "graph.h"
#include "leaked.h"
#include "stream.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

namespace tracehook::rehearsal::cuda {

enum class CaptureMode : int { kGlobal, kThreadLocal, kRelaxed };
enum class CaptureStatus : int { kNone, kActive, kInvalidated };

// From cudaStreamBeginCapture to its end. Written under the mutex of `Captures`.
struct Capture {
    uint64_t id;
    CaptureMode mode;
    std::thread::id thread;
    const Stream* origin;
    CaptureStatus status = CaptureStatus::kActive; // kNone once it ended
    std::shared_ptr<Graph> graph;                  // null once it ended
};

// What an event that was recorded on a captured stream stands for: the nodes that came last there.
struct CapturePoint {
    std::shared_ptr<Capture> capture;
    std::vector<const Node*> front;
};

// What cudaStreamGetCaptureInfo tells. The arrays live until the stream's next call.
struct CaptureInfo {
    CaptureStatus status = CaptureStatus::kNone;
    uint64_t id = 0;
    void* graph = nullptr;
    const Node* const* dependencies = nullptr;
    const uint64_t* edges = nullptr;
    size_t count = 0;
};

class Captures {
  public:
    static Captures& instance() { return leaked<Captures>(); }

    // The mode of the calling thread, which `mode` replaces.
    static CaptureMode exchange_mode(CaptureMode mode);

    Status begin(const std::shared_ptr<Stream>& stream, CaptureMode mode);

    // Ends the capture that began on `stream`, whatever the answer is; `graph` is set on success.
    Status end(const std::shared_ptr<Stream>& stream, std::shared_ptr<Graph>& graph);

    // Work for `stream`. None: it is not captured, the caller does the work. Otherwise it was
    // recorded or refused.
    std::optional<Status> record(const std::shared_ptr<Stream>& stream, const Node::Launch& launch);

    // An event recorded on `stream`: as `record`, but without a node; `point` is set on success.
    std::optional<Status> mark(const std::shared_ptr<Stream>& stream,
                               std::shared_ptr<const CapturePoint>& point);

    // `stream` waits for an event that was recorded at `point`, or outside of captures (null), and
    // so may join a capture. None: neither of them is captured.
    std::optional<Status> join(const std::shared_ptr<Stream>& stream,
                               const std::shared_ptr<const CapturePoint>& point);

    // Whether the work on a stream, on all streams of a device, or up to an event may be asked
    // about or waited for. A refusal invalidates what is being captured there.
    Status ask_stream(const std::shared_ptr<Stream>& stream);
    Status ask_device(int device);
    Status ask_event(const std::shared_ptr<const CapturePoint>& point);

    // What the time of an event that was recorded at `point` may be asked with: an error.
    Status time_of(const CapturePoint& point) const;

    // Whether the calling thread may make a call that could disturb a capture; if not, the captures
    // that forbid it are invalidated.
    Status unsafe_call();
    // The same question without consequences, and the consequences alone.
    bool forbids_unsafe_calls() const;
    void invalidate_forbidding();

    // A call on `stream` that no graph can hold: refused there.
    std::optional<Status> refuse(const std::shared_ptr<Stream>& stream);

    // An error if the legacy stream may not be asked: a blocking stream is being captured.
    Status info(const std::shared_ptr<Stream>& stream, CaptureInfo& info);
    bool holds(const Stream& stream) const;

    // The stream is destroyed, and a capture that began there is dropped.
    void forget(const Stream& stream);

  private:
    struct Member {
        std::shared_ptr<Capture> capture;
        std::shared_ptr<Stream> stream;
        std::vector<const Node*> front; // the nodes that came last
        std::vector<uint64_t> edges;    // as many plain edges, as cudaGraphEdgeData
    };

    // What `body` returns for the place of a captured stream, under the mutex; none if it is not
    // captured; an error if it may be given nothing.
    template <typename Body> std::optional<Status> in_capture(const Stream& stream, Body&& body) {
        if (none()) {
            return std::nullopt;
        }
        const std::lock_guard lock(mutex_);
        Member* const at = member(stream);
        if (const Status status = admit(stream, at); status != kSuccess) {
            return status;
        }
        return at == nullptr ? std::nullopt : std::optional<Status>(body(*at));
    }

    bool none() const { return open_.load(std::memory_order_acquire) == 0; }

    // All of these require that mutex_ is held.
    Member* member(const Stream& stream);
    // The error of giving work to `stream` or, for the legacy stream, of the implied wait.
    Status admit(const Stream& stream, Member* member);
    bool blocks_legacy(const Stream& stream) const;
    bool unjoined(const Capture& capture) const;
    void close(const std::shared_ptr<Capture>& capture);
    static bool forbids(const Capture& capture);
    static void invalidate(Capture& capture);

    // The captures that have not ended: most calls need to know no more than that there is none.
    std::atomic<int> open_{0};

    // Protects everything below and what is in captures. The mutexes of graphs and of their table
    // come after it.
    mutable std::mutex mutex_;
    uint64_t last_id_ = 0;
    std::unordered_map<const Stream*, Member> members_;
};

} // namespace tracehook::rehearsal::cuda
