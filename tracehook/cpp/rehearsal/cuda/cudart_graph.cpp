// The runtime's functions about graphs, which are made by capture only, and about user objects.
#include "capture.h"
#include "cuda_abi.h"
#include "graph.h"
#include "runtime_call.h"
#include "stream_table.h"

#include <algorithm>

namespace tracehook::rehearsal::cuda {
namespace {

// A call about a graph, an instance or a user object, which must be alive.
template <typename Object, typename Body>
Status about(const HandleTable<Object>& table, void* handle, Body&& body,
             const char* call = __builtin_FUNCTION()) {
    return context_call(
        [&] {
            const std::shared_ptr<Object> object = table.find(handle);
            return object == nullptr ? kInvalidValue : outcome(body, object);
        },
        call);
}

int instantiate(void** instance, void* handle, const char* call) {
    const auto make = [&](const std::shared_ptr<Graph>& graph) {
        *instance = graph_instances().insert(std::make_shared<GraphInstance>(graph));
    };
    return about(graphs(), handle, make, call);
}

// As the runtime does: at most *count of them, or, without `where`, how many there are.
void list(const std::vector<const Node*>& nodes, const void** where, size_t* count) {
    if (where == nullptr) {
        *count = nodes.size();
        return;
    }
    const size_t copied = std::min(*count, nodes.size());
    std::copy_n(nodes.begin(), copied, where);
    std::fill(where + copied, where + *count, nullptr);
    *count = copied;
}

constexpr unsigned kNoDestructorSync = 1; // cudaUserObjectNoDestructorSync, which must be given
constexpr unsigned kMove = 1; // cudaGraphUserObjectMove: the caller's references go over

} // namespace

bool UserObject::release(unsigned count) {
    unsigned before = references_;
    do {
        if (before < count) {
            return false;
        }
    } while (!references_.compare_exchange_weak(before, before - count));
    if (before == count) {
        const auto kept = user_objects().remove(this);
        destroy_(data_);
    }
    return true;
}

// The flags are about memory that graphs allocate, and about launches by the device.
EMU_EXPORT int cudaGraphInstantiate(void** instance, void* graph, unsigned long long) {
    return instantiate(instance, graph, __func__);
}

EMU_EXPORT int cudaGraphInstantiateWithFlags(void** instance, void* graph, unsigned long long) {
    return instantiate(instance, graph, __func__);
}

EMU_EXPORT int cudaGraphLaunch(void* handle, void* stream_handle) {
    return about(graph_instances(), handle, [&](const std::shared_ptr<GraphInstance>& instance) {
        const std::shared_ptr<Stream> stream = StreamTable::instance().find(stream_handle);
        if (stream == nullptr) {
            return kInvalidResourceHandle;
        }
        if (const auto answer = Captures::instance().refuse(stream)) {
            return *answer;
        }
        instance->launch(stream);
        return kSuccess;
    });
}

EMU_EXPORT int cudaGraphDestroy(void* graph) {
    return context_call([&] { return graphs().remove(graph) ? kSuccess : kInvalidValue; });
}

EMU_EXPORT int cudaGraphExecDestroy(void* instance) {
    return context_call(
        [&] { return graph_instances().remove(instance) ? kSuccess : kInvalidValue; });
}

EMU_EXPORT int cudaGraphGetNodes(void* handle, const void** nodes, size_t* count) {
    return about(graphs(), handle, [&](const auto& graph) { list(graph->nodes(), nodes, count); });
}

EMU_EXPORT int cudaGraphNodeGetDependencies(const void* node, const void** dependencies,
                                            void* edges, size_t* count) {
    return context_call([&] {
        list(static_cast<const Node*>(node)->dependencies, dependencies, count);
        if (dependencies != nullptr && edges != nullptr) {
            std::fill_n(static_cast<uint64_t*>(edges), *count, 0);
        }
    });
}

EMU_EXPORT int cudaUserObjectCreate(void** object, void* data, UserObject::Destroy destroy,
                                    unsigned references, unsigned flags) {
    return context_call([&] {
        if (object == nullptr || destroy == nullptr || references == 0 ||
            flags != kNoDestructorSync) {
            return kInvalidValue;
        }
        *object = user_objects().insert(std::make_shared<UserObject>(data, destroy, references));
        return kSuccess;
    });
}

EMU_EXPORT int cudaUserObjectRetain(void* handle, unsigned count) {
    return about(user_objects(), handle, [&](const std::shared_ptr<UserObject>& object) {
        object->retain(count);
        return count != 0 ? kSuccess : kInvalidValue;
    });
}

EMU_EXPORT int cudaUserObjectRelease(void* handle, unsigned count) {
    return about(user_objects(), handle, [&](const std::shared_ptr<UserObject>& object) {
        return count != 0 && object->release(count) ? kSuccess : kInvalidValue;
    });
}

EMU_EXPORT int cudaGraphRetainUserObject(void* graph_handle, void* handle, unsigned count,
                                         unsigned flags) {
    return context_call([&] {
        const std::shared_ptr<Graph> graph = graphs().find(graph_handle);
        const std::shared_ptr<UserObject> object = user_objects().find(handle);
        if (graph == nullptr || object == nullptr || count == 0 || (flags & ~kMove) != 0) {
            return kInvalidValue;
        }
        if ((flags & kMove) == 0) {
            object->retain(count);
        }
        graph->hold(object, count);
        return kSuccess;
    });
}

} // namespace tracehook::rehearsal::cuda
