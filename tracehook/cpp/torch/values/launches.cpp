#include "torch/values/launches.h"

#include "torch/values/uncomputed.h"

#include "emulator/device.h"

#include <array>
#include <string_view>

namespace tracehook::values {
namespace {

Launches*& youngest() {
    static thread_local Launches* launches = nullptr;
    return launches;
}

// They write nothing that a program reads as a tensor.
constexpr std::array<std::string_view, 1> kWithoutResults{"at::cuda::spin_kernel"};

} // namespace

Launches::Launches() : before_(youngest()) {
    youngest() = this;
}

Launches::~Launches() {
    youngest() = before_;
}

void Launches::seen(const char* name) {
    for (const std::string_view each : kWithoutResults) {
        if (each == name) {
            return;
        }
    }
    if (youngest() != nullptr) {
        youngest()->any_ = true;
    } else {
        note_uncomputed(name, "kernel");
    }
}

void follow_launches() {
    emu_set_launch_observer(Launches::seen);
}

} // namespace tracehook::values
