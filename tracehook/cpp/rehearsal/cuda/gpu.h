// Which device is played: TRACEHOOK_EMU_GPU names a row of gpus.def.
//
// Header only, because the runtime and the management library (which do not link to each other)
// must agree. Fixed at the first call; any thread.
#pragma once

#include <array>
#include <cstdlib>
#include <string_view>

namespace tracehook::rehearsal::cuda {

struct Gpu {
    std::string_view option;
    const char* name;
    int major;
    int minor;
    int multiprocessors;
    int memory_gib;
    int shared_per_block_kib; // opt-in
    int shared_per_multiprocessor_kib;
    int l2_mib;
    int threads_per_multiprocessor;
    int blocks_per_multiprocessor;
    bool nvlink;
    bool peers; // reach each other's memory
};

// clang-format off
inline constexpr std::array kGpus{
#define GPU(option, name, major, minor, processors, memory, block, processor, l2, threads, blocks, nvlink, peers) \
    Gpu{option, name, major, minor, processors, memory, block, processor, l2, threads, blocks, nvlink != 0, peers != 0},
#include "gpus.def"
#undef GPU
};
// clang-format on

// Without a name: an H200 with less memory, so that many fit on a small machine.
inline constexpr Gpu kDefaultGpu{
    "", "NVIDIA H200 (emulated)", 9, 0, 132, 64, 227, 228, 60, 2048, 32, true, true};

inline const Gpu& gpu() {
    static const Gpu chosen = [] {
        const char* wanted = std::getenv("TRACEHOOK_EMU_GPU");
        for (const Gpu& each : kGpus) {
            if (wanted != nullptr && each.option == wanted) {
                return each;
            }
        }
        return kDefaultGpu;
    }();
    return chosen;
}

} // namespace tracehook::rehearsal::cuda
