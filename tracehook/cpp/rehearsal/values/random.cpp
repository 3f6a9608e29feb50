#include "rehearsal/values/random.h"

#include "rehearsal/values/stream.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/cuda/PhiloxCudaState.h>

#include <mutex>

#include <dlfcn.h>

namespace tracehook::rehearsal::values {
namespace {

constexpr const char* kState = "_ZN2at17CUDAGeneratorImpl17philox_cuda_stateEm";

// Asks for no numbers, only for the place of the next.
RandomPlace place_in_graph(const at::Generator& generator) {
    using State = at::PhiloxCudaState (*)(at::GeneratorImpl*, uint64_t);
    static const auto state_of = [] {
        void* const library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
        return reinterpret_cast<State>(library == nullptr ? nullptr : dlsym(library, kState));
    }();
    TORCH_CHECK(state_of != nullptr, "rehearsal: this torch does not show the random numbers of a ",
                "CUDA graph; keep them out of the graph");
    const at::PhiloxCudaState state = state_of(generator.unsafeGetGeneratorImpl(), 0);
    return {.offset = state.offset_intragraph_,
            .seed_of_launch = state.seed_.ptr,
            .offset_of_launch = state.offset_.ptr};
}

} // namespace

at::Generator generator_of(uint64_t seed, uint64_t offset) {
    // Neighbouring offsets shall not give neighbouring streams.
    uint64_t mixed = seed + 0x9E3779B97F4A7C15ULL * (offset + 1);
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ULL;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBULL;
    return at::detail::createCPUGenerator(mixed ^ (mixed >> 31));
}

at::Generator RandomPlace::generator() const {
    if (seed_of_launch == nullptr || offset_of_launch == nullptr) {
        return generator_of(seed, offset);
    }
    return generator_of(static_cast<uint64_t>(*seed_of_launch),
                        static_cast<uint64_t>(*offset_of_launch) + offset);
}

RandomPlace random_place(const std::vector<c10::IValue>& arguments, at::Device device) {
    at::Generator given;
    for (const c10::IValue& argument : arguments) {
        if (argument.isGenerator()) {
            given = argument.toGenerator();
        }
    }
    if (!given.defined()) {
        given = at::globalContext().defaultGenerator(device);
    }
    const std::lock_guard lock(given.mutex());
    return is_capturing(device)
               ? place_in_graph(given)
               : RandomPlace{.seed = given.current_seed(), .offset = given.get_offset()};
}

} // namespace tracehook::rehearsal::values
