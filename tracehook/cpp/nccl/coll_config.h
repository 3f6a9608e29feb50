// What a program sets for one call (ncclCollConfig_t). NCCL wants it to be the same on all ranks,
// and each rank's NCCL looks at its own only.
//
// Any thread. A lock of its own, under which nothing else is called.
#pragma once

#include "nccl/abi.h"

#include <cstdint>
#include <string>
#include <vector>

namespace tracehook::nccl {

// A number that is the same on all ranks for the same settings; 0 for no configuration, and for one
// that NCCL will refuse. The tag for profilers does not count, because NCCL does the same whatever
// it is, nor do a vendor's options, whose values have no type. Remembers the settings.
std::uint32_t number_of(const CollConfig* config) noexcept;

// The settings with that number, each with its name, always in the same order: "maxCTAs 4",
// "nvlsCTAs not set". Empty if there is none.
std::vector<std::string> settings_of(std::uint32_t number);

} // namespace tracehook::nccl
