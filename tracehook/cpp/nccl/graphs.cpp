#include "nccl/graphs.h"

#include "cuda/runtime.h"
#include "nccl/api.h"

#include <memory>

namespace tracehook::nccl {

namespace {

using Graphs = std::shared_ptr<windows::LiveGraphs>;

// By a thread of CUDA's, which may make no call into CUDA here.
void graph_ended(void* held) {
    const std::unique_ptr<Graphs> graphs(static_cast<Graphs*>(held));
    (*graphs)->remove();
}

// As NCCL does it, with the same calls: what ends with the graph is an object that only it holds.
void hold(void* graph, Graphs* held) noexcept {
    constexpr unsigned kNoDestructorSync = 1; // cudaUserObjectNoDestructorSync
    constexpr unsigned kMove = 1;             // cudaGraphUserObjectMove
    const Api& real = api();
    void* object = nullptr;
    if (cuda::absorbed(
            real.cudaUserObjectCreate(&object, held, &graph_ended, 1, kNoDestructorSync)) != 0) {
        graph_ended(held);
        return;
    }
    if (cuda::absorbed(real.cudaGraphRetainUserObject(graph, object, 1, kMove)) != 0) {
        cuda::absorbed(real.cudaUserObjectRelease(object, 1));
    }
}

} // namespace

void follow_graph(const registrar::Communicator& communicator, Stream stream) noexcept {
    const Api& real = api();
    if (real.cudaStreamGetCaptureInfo == nullptr || real.cudaUserObjectCreate == nullptr ||
        real.cudaUserObjectRelease == nullptr || real.cudaGraphRetainUserObject == nullptr) {
        return;
    }
    int status = 0;
    unsigned long long capture = 0;
    void* graph = nullptr;
    const void* dependencies =
        nullptr; // these are asked for because CUDA refuses to leave them out
    const void* edges = nullptr;
    std::size_t count = 0;
    const bool known = cuda::absorbed(real.cudaStreamGetCaptureInfo(
                           stream, &status, &capture, &graph, &dependencies, &edges, &count)) == 0;
    const auto& graphs = windows::of(communicator).graphs();
    if (known && graph != nullptr && graphs->is_new(capture)) {
        graphs->add();
        hold(graph, new Graphs(graphs));
    }
}

} // namespace tracehook::nccl
