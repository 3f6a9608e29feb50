#include "profile.h"

#include "settings.h"

namespace tracehook::emulator::nccl {

bool has(Trait trait) {
    return tracehook::nccl::has(trait, settings().version);
}

} // namespace tracehook::emulator::nccl
