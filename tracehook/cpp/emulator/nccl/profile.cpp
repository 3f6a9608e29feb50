#include "profile.h"

#include "settings.h"

namespace tracehook::emulator::nccl {

const Profile& profile() {
    static const Profile kept = [] {
        const int version = settings().version;
        return Profile{version >= 22900, version >= 22902, version >= 23000,
                       version >= 23007, version >= 23007, version >= 23007};
    }();
    return kept;
}

} // namespace tracehook::emulator::nccl
