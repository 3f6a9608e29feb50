#include "nccl/graphs.h"

#include "nccl/api.h"

#include <memory>

namespace tracehook::nccl {

namespace {

using Graphs = std::shared_ptr<core::LiveGraphs>;

// By a thread of CUDA's, which may make no call into CUDA here.
void graph_ended(void* held) {
    const std::unique_ptr<Graphs> graphs(static_cast<Graphs*>(held));
    (*graphs)->remove();
}

// As NCCL does it, with the same calls: what ends with the graph is an object that only it holds.
bool hold(void* graph, Graphs* held) noexcept {
    constexpr unsigned kNoDestructorSync = 1; // cudaUserObjectNoDestructorSync
    constexpr unsigned kMove = 1;             // cudaGraphUserObjectMove
    const Api& cuda = api();
    void* object = nullptr;
    if (cuda.cudaUserObjectCreate(&object, held, &graph_ended, 1, kNoDestructorSync) != 0) {
        graph_ended(held);
        return false;
    }
    if (cuda.cudaGraphRetainUserObject(graph, object, 1, kMove) != 0) {
        cuda.cudaUserObjectRelease(object, 1);
        return false;
    }
    return true;
}

} // namespace

void follow_graph(const core::Communicator& communicator, Stream stream) noexcept {
    const Api& cuda = api();
    if (cuda.cudaStreamGetCaptureInfo == nullptr || cuda.cudaUserObjectCreate == nullptr ||
        cuda.cudaUserObjectRelease == nullptr || cuda.cudaGraphRetainUserObject == nullptr) {
        return;
    }
    int status = 0;
    unsigned long long capture = 0;
    void* graph = nullptr;
    const void* dependencies =
        nullptr; // these are asked for because CUDA refuses to leave them out
    const void* edges = nullptr;
    std::size_t count = 0;
    const bool known = cuda.cudaStreamGetCaptureInfo(stream, &status, &capture, &graph,
                                                     &dependencies, &edges, &count) == 0;
    bool held = true;
    if (known && graph != nullptr && communicator.graphs()->is_new(capture)) {
        communicator.graphs()->add();
        held = hold(graph, new Graphs(communicator.graphs()));
    }
    if ((!known || !held) && cuda.cudaGetLastError != nullptr) {
        cuda.cudaGetLastError(); // else torch would take the error for its own
    }
}

} // namespace tracehook::nccl
