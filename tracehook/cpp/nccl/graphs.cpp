#include "nccl/graphs.h"

#include "cuda/runtime.h"
#include "nccl/api.h"

#include <cstdlib>
#include <memory>
#include <string_view>

namespace tracehook::nccl {

namespace {

using Graphs = std::shared_ptr<registrar::LiveGraphs>;

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

// NCCL, too, reads it once.
bool maps_captured_buffers() noexcept {
    static const bool is_on = [] {
        const char* const said = std::getenv("NCCL_GRAPH_REGISTER");
        return said == nullptr || std::string_view(said) != "0";
    }();
    return is_on;
}

} // namespace

void follow_graph(const Graphs& graphs, Stream stream) noexcept {
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
    if (known && graph != nullptr && graphs->is_new(capture)) {
        graphs->add();
        hold(graph, new Graphs(graphs));
    }
}

void note_captured(registrar::Registrar& registrar, registrar::Communicator& communicator,
                   std::initializer_list<const void*> buffers, Stream stream) noexcept {
    if (!registrar.has_pausable() || communicator.identity().size < 2 || !capturing(stream) ||
        !maps_captured_buffers()) {
        return;
    }
    for (const void* buffer : buffers) {
        if (const auto graphs =
                registrar.captured(communicator, reinterpret_cast<std::uintptr_t>(buffer))) {
            follow_graph(graphs, stream);
        }
    }
}

} // namespace tracehook::nccl
