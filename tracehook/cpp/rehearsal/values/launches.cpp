#include "rehearsal/values/launches.h"

#include "rehearsal/values/uncomputed.h"

#include "rehearsal/cuda/device.h"

#include <array>
#include <string_view>

namespace tracehook::rehearsal::values {
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

} // namespace tracehook::rehearsal::values
