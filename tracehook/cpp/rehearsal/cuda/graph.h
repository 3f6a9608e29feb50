// CUDA graphs as the emulation has them: nodes in the order in which they were captured, and
// instances that repeat all of them in that order on one stream. And CUDA's user objects, which
// graphs may hold: counted references to something of the program, and a function that is called
// when the last is gone.
//
// Any thread; the graphs not in a forked child. A graph is alive while its handle, an instance of
// it or the capture that makes it is. The function of a user object is called by whoever gives back
// the last reference, without a lock.
#pragma once

#include "handle_table.h"
#include "leaked.h"
#include "stream.h"

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace tracehook::rehearsal::cuda {

class UserObject {
  public:
    using Destroy = void (*)(void* data);

    UserObject(void* data, Destroy destroy, unsigned references)
        : data_(data), destroy_(destroy), references_(references) {}

    void retain(unsigned count) { references_ += count; }
    // False if there are not so many. The object leaves the table with the last, and then its data
    // goes.
    bool release(unsigned count);

  private:
    void* const data_;
    const Destroy destroy_;
    std::atomic<unsigned> references_;
};

// The live ones of the process by handle; a graph keeps those that it holds.
inline HandleTable<UserObject>& user_objects() {
    return leaked<HandleTable<UserObject>>();
}

struct Node {
    // Gives what was recorded to the stream of a launch; called on the launching thread, without a
    // lock. Empty for what has no effect here.
    using Launch = std::function<void(const std::shared_ptr<Stream>& stream)>;

    Launch launch;
    // What must come before. The order of capture implies it; only the ends of a capture and
    // questions about the graph look at it.
    std::vector<const Node*> dependencies;
};

// The launch of work that the runtime itself does.
template <typename Work> auto repeated(Work work) {
    return
        [work = std::move(work)](const std::shared_ptr<Stream>& stream) { stream->submit(work); };
}

class Graph {
  public:
    ~Graph();
    // The node stays where it is for as long as the graph lives.
    const Node* add(Node node);

    std::vector<const Node*> nodes() const;

    // References that the graph has from now on, and gives back when it ends.
    void hold(std::shared_ptr<UserObject> object, unsigned count);

  private:
    // Protects nodes_ and held_, which grow during a capture. Nothing is locked while it is held.
    mutable std::mutex mutex_;
    std::deque<Node> nodes_;
    std::vector<std::pair<std::shared_ptr<UserObject>, unsigned>> held_;
};

class GraphInstance {
  public:
    explicit GraphInstance(std::shared_ptr<const Graph> graph)
        : graph_(std::move(graph)), nodes_(graph_->nodes()) {}

    // Gives every node to `stream`, behind the launch before, whichever stream that was on. Never
    // waits. Launches of one instance are one thread's business at a time.
    void launch(const std::shared_ptr<Stream>& stream);

  private:
    const std::shared_ptr<const Graph> graph_;
    const std::vector<const Node*> nodes_;

    // Protects the end of the launch before. The mutexes of streams come after it.
    std::mutex mutex_;
    std::shared_ptr<Stream> stream_;
    uint64_t sequence_ = 0;
};

// The live graphs and instances of the process by handle.
inline HandleTable<Graph>& graphs() {
    return leaked<HandleTable<Graph>>();
}
inline HandleTable<GraphInstance>& graph_instances() {
    return leaked<HandleTable<GraphInstance>>();
}

} // namespace tracehook::rehearsal::cuda
