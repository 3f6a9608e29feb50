#include "graph.h"

#include "stream_table.h"

#include <utility>

namespace tracehook::rehearsal::cuda {

Graph::~Graph() {
    for (const auto& [object, count] : held_) {
        object->release(count);
    }
}

void Graph::hold(std::shared_ptr<UserObject> object, unsigned count) {
    const std::lock_guard lock(mutex_);
    held_.emplace_back(std::move(object), count);
}

const Node* Graph::add(Node node) {
    const std::lock_guard lock(mutex_);
    return &nodes_.emplace_back(std::move(node));
}

std::vector<const Node*> Graph::nodes() const {
    const std::lock_guard lock(mutex_);
    std::vector<const Node*> all;
    all.reserve(nodes_.size());
    for (const Node& node : nodes_) {
        all.push_back(&node);
    }
    return all;
}

void GraphInstance::launch(const std::shared_ptr<Stream>& stream) {
    StreamTable::instance().order(stream);
    {
        const std::lock_guard lock(mutex_);
        if (stream_ != nullptr) {
            StreamTable::make_wait(*stream, stream_, sequence_);
        }
    }
    for (const Node* node : nodes_) {
        if (node->launch) {
            node->launch(stream);
        }
    }
    const std::lock_guard lock(mutex_);
    stream_ = stream;
    sequence_ = stream->tail();
}

} // namespace tracehook::rehearsal::cuda
