// Libraries that map memory of the driver by themselves, for the caching allocator to use: a sleep
// mode takes it away and puts other memory at the same addresses, and no event of the allocator
// tells. So we stand in the slots by which they call the driver. torch, NCCL and tracehook itself
// look the driver's functions up, and do not come by.
//
// The functions in the slots run on the library's thread, perhaps in the allocator with its device
// lock, perhaps with the GIL and a lock of the library. Nothing throws or takes the GIL.
#pragma once

#include "elf/slots.h"
#include "registrar/registrar.h"

#include <vector>

namespace tracehook::torch {

// Whom they tell; a forked child's registrar takes the place of its parent's.
std::vector<elf::Beside> pausing_calls(registrar::Registrar& registrar);

} // namespace tracehook::torch
