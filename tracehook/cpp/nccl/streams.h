// Numbers of streams, for the records of calls (events/calls.h).
#pragma once

#include "nccl/abi.h"

#include <cstdint>

namespace tracehook::nccl {

// Any thread, without a lock. From 1; of more streams than one byte tells apart all further ones
// have 255. A stream that the program makes where an ended one was has its number.
std::uint32_t number_of(Stream stream, int device) noexcept;

} // namespace tracehook::nccl
