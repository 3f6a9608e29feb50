// What the emulated version of NCCL does with windows: versions differ, and jobs rely on it. Any
// thread, no lock.
#pragma once

#include "nccl/traits.h"

namespace tracehook::rehearsal::nccl {

using tracehook::nccl::Trait;

bool has(Trait trait);

} // namespace tracehook::rehearsal::nccl
