#include "capture.h"

#include "stream_table.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace tracehook::rehearsal::cuda {
namespace {

void add_missing(std::vector<const Node*>& front, const std::vector<const Node*>& more) {
    for (const Node* node : more) {
        if (std::ranges::find(front, node) == front.end()) {
            front.push_back(node);
        }
    }
}

} // namespace

Status Captures::begin(const std::shared_ptr<Stream>& stream, CaptureMode mode) {
    if (StreamTable::instance().is_legacy(*stream)) {
        return kStreamCaptureUnsupported;
    }
    const std::lock_guard lock(mutex_);
    if (member(*stream) != nullptr) {
        return kIllegalState;
    }
    auto capture = std::make_shared<Capture>();
    capture->id = ++last_id_;
    capture->mode = mode;
    capture->thread = std::this_thread::get_id();
    capture->origin = stream.get();
    capture->graph = std::make_shared<Graph>();
    graphs().insert(capture->graph);
    members_.emplace(stream.get(), Member{std::move(capture), stream, {}, {}});
    open_.fetch_add(1, std::memory_order_release);
    return kSuccess;
}

Status Captures::end(const std::shared_ptr<Stream>& stream, std::shared_ptr<Graph>& graph) {
    std::shared_ptr<Graph> made; // outlives the lock, and with it what was recorded
    const std::lock_guard lock(mutex_);
    const Member* const at = member(*stream);
    if (at == nullptr) {
        return kIllegalState;
    }
    const std::shared_ptr<Capture> capture = at->capture;
    if (capture->origin != stream.get()) {
        const bool broken = capture->status == CaptureStatus::kInvalidated;
        invalidate(*capture);
        return broken ? kStreamCaptureInvalidated : kStreamCaptureUnmatched;
    }
    Status status = kSuccess;
    if (capture->mode != CaptureMode::kRelaxed && capture->thread != std::this_thread::get_id()) {
        status = kStreamCaptureWrongThread;
    } else if (capture->status == CaptureStatus::kInvalidated) {
        status = kStreamCaptureInvalidated;
    } else if (unjoined(*capture)) {
        status = kStreamCaptureUnjoined;
    }
    made = capture->graph;
    close(capture);
    if (status == kSuccess) {
        graph = std::move(made);
    } else {
        graphs().remove(made.get());
    }
    return status;
}

std::optional<Status> Captures::record(const std::shared_ptr<Stream>& stream,
                                       const Node::Launch& launch) {
    return in_capture(*stream, [&](Member& at) {
        at.front = {at.capture->graph->add({launch, std::move(at.front)})};
        return kSuccess;
    });
}

std::optional<Status> Captures::mark(const std::shared_ptr<Stream>& stream,
                                     std::shared_ptr<const CapturePoint>& point) {
    return in_capture(*stream, [&](const Member& at) {
        point = std::make_shared<CapturePoint>(CapturePoint{at.capture, at.front});
        return kSuccess;
    });
}

std::optional<Status> Captures::join(const std::shared_ptr<Stream>& stream,
                                     const std::shared_ptr<const CapturePoint>& point) {
    if (point == nullptr && none()) {
        return std::nullopt;
    }
    const std::lock_guard lock(mutex_);
    Member* const at = member(*stream);
    if (at != nullptr && at->capture->status == CaptureStatus::kInvalidated) {
        return kStreamCaptureInvalidated;
    }
    const bool open = point != nullptr && point->capture->status == CaptureStatus::kActive;
    if (at != nullptr && open && point->capture == at->capture) {
        add_missing(at->front, point->front);
        return kSuccess;
    }
    if (at != nullptr) {
        invalidate(*at->capture);
    }
    if (point == nullptr) {
        // Also for work that was done long ago: a graph could not wait for it again.
        return at == nullptr ? std::nullopt : std::optional(kStreamCaptureIsolation);
    }
    if (!open) {
        return kInvalidValue;
    }
    if (at != nullptr || StreamTable::instance().is_legacy(*stream)) {
        invalidate(*point->capture);
        return at != nullptr ? kStreamCaptureMerge : kStreamCaptureImplicit;
    }
    members_.emplace(stream.get(), Member{point->capture, stream, point->front, {}});
    return kSuccess;
}

Status Captures::info(const std::shared_ptr<Stream>& stream, CaptureInfo& info) {
    info = {};
    if (none()) {
        return kSuccess;
    }
    const std::lock_guard lock(mutex_);
    if (blocks_legacy(*stream)) {
        return kStreamCaptureImplicit;
    }
    Member* const at = member(*stream);
    if (at == nullptr) {
        return kSuccess;
    }
    at->edges.assign(at->front.size(), 0);
    info = {at->capture->status, at->capture->id,  at->capture->graph.get(),
            at->front.data(),    at->edges.data(), at->front.size()};
    return kSuccess;
}

bool Captures::holds(const Stream& stream) const {
    if (none()) {
        return false;
    }
    const std::lock_guard lock(mutex_);
    return members_.contains(&stream);
}

void Captures::forget(const Stream& stream) {
    if (none()) {
        return;
    }
    std::shared_ptr<Graph> dropped;
    const std::lock_guard lock(mutex_);
    const Member* const at = member(stream);
    if (at == nullptr) {
        return;
    }
    if (at->capture->origin == &stream) {
        const std::shared_ptr<Capture> capture = at->capture;
        dropped = capture->graph;
        graphs().remove(dropped.get());
        close(capture);
    } else {
        members_.erase(&stream);
    }
}

Captures::Member* Captures::member(const Stream& stream) {
    const auto at = members_.find(&stream);
    return at == members_.end() ? nullptr : &at->second;
}

Status Captures::admit(const Stream& stream, Member* member) {
    if (member != nullptr) {
        return member->capture->status == CaptureStatus::kActive ? kSuccess
                                                                 : kStreamCaptureInvalidated;
    }
    if (!blocks_legacy(stream)) {
        return kSuccess;
    }
    for (const auto& [other, known] : members_) {
        if (other->is_blocking() && other->device() == stream.device()) {
            invalidate(*known.capture);
        }
    }
    return kStreamCaptureImplicit;
}

bool Captures::blocks_legacy(const Stream& stream) const {
    return StreamTable::instance().is_legacy(stream) &&
           std::ranges::any_of(members_, [&](const auto& known) {
               return known.first->is_blocking() && known.first->device() == stream.device();
           });
}

bool Captures::unjoined(const Capture& capture) const {
    std::unordered_set<const Node*> before;
    std::vector<const Node*> next = members_.at(capture.origin).front;
    while (!next.empty()) {
        const Node* const node = next.back();
        next.pop_back();
        if (before.insert(node).second) {
            next.insert(next.end(), node->dependencies.begin(), node->dependencies.end());
        }
    }
    return std::ranges::any_of(members_, [&](const auto& known) {
        return known.second.capture.get() == &capture &&
               !std::ranges::all_of(known.second.front,
                                    [&](const Node* node) { return before.contains(node); });
    });
}

void Captures::close(const std::shared_ptr<Capture>& capture) {
    capture->status = CaptureStatus::kNone;
    capture->graph = nullptr;
    std::erase_if(members_, [&](const auto& known) { return known.second.capture == capture; });
    open_.fetch_sub(1, std::memory_order_release);
}

void Captures::invalidate(Capture& capture) {
    capture.status = CaptureStatus::kInvalidated;
}

} // namespace tracehook::rehearsal::cuda
