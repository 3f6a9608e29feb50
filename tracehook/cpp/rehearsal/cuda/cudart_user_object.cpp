// The runtime's functions about user objects.
#include "cuda_abi.h"
#include "graph.h"
#include "runtime_call.h"

namespace tracehook::rehearsal::cuda {
namespace {

constexpr unsigned kNoDestructorSync = 1; // cudaUserObjectNoDestructorSync, which must be given
constexpr unsigned kMove = 1; // cudaGraphUserObjectMove: the caller's references go over

} // namespace

HandleTable<UserObject>& user_objects() {
    static HandleTable<UserObject>& table = *new HandleTable<UserObject>; // outlives every graph
    return table;
}

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
