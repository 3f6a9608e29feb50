// The runtime's functions about graphs, which are made by capture only, and about user objects.
#include "capture.h"
#include "cuda_abi.h"
#include "graph.h"
#include "runtime_call.h"
#include "stream_table.h"

#include <algorithm>

namespace tracehook::rehearsal::cuda {
namespace {

Status instantiate(void** instance, void* handle) {
    const std::shared_ptr<Graph> graph = graphs().find(handle);
    if (graph == nullptr) {
        return kInvalidValue;
    }
    *instance = graph_instances().insert(std::make_shared<GraphInstance>(graph));
    return kSuccess;
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

} // namespace tracehook::rehearsal::cuda

using namespace tracehook::rehearsal::cuda;

// The flags are about memory that graphs allocate, and about launches by the device.
EMU_EXPORT int cudaGraphInstantiate(void** instance, void* graph, unsigned long long) {
    return context_call([&] { return instantiate(instance, graph); });
}

EMU_EXPORT int cudaGraphInstantiateWithFlags(void** instance, void* graph, unsigned long long) {
    return context_call([&] { return instantiate(instance, graph); });
}

EMU_EXPORT int cudaGraphLaunch(void* handle, void* stream_handle) {
    return context_call([&] {
        const std::shared_ptr<GraphInstance> instance = graph_instances().find(handle);
        if (instance == nullptr) {
            return kInvalidValue;
        }
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
    return context_call([&] {
        const std::shared_ptr<Graph> graph = graphs().find(handle);
        if (graph == nullptr) {
            return kInvalidValue;
        }
        list(graph->nodes(), nodes, count);
        return kSuccess;
    });
}

EMU_EXPORT int cudaGraphNodeGetDependencies(const void* node, const void** dependencies,
                                            void* edges, size_t* count) {
    return context_call([&] {
        list(static_cast<const Node*>(node)->dependencies, dependencies, count);
        if (dependencies != nullptr && edges != nullptr) {
            std::fill_n(static_cast<uint64_t*>(edges), *count, 0);
        }
        return kSuccess;
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
    return context_call([&] {
        const std::shared_ptr<UserObject> object = user_objects().find(handle);
        if (object == nullptr || count == 0) {
            return kInvalidValue;
        }
        object->retain(count);
        return kSuccess;
    });
}

EMU_EXPORT int cudaUserObjectRelease(void* handle, unsigned count) {
    return context_call([&] {
        const std::shared_ptr<UserObject> object = user_objects().find(handle);
        return object != nullptr && count != 0 && object->release(count) ? kSuccess : kInvalidValue;
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
