#include "profile.h"

#include "settings.h"

namespace tracehook::rehearsal::nccl {

bool has(Trait trait) {
    return tracehook::nccl::has(trait, settings().version);
}

} // namespace tracehook::rehearsal::nccl
