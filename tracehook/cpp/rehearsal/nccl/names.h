// NCCL's own types and constants, by their plain names, for every file of the emulated NCCL.
#pragma once

#include "nccl/abi.h"

namespace tracehook::rehearsal::nccl {

using namespace ::tracehook::nccl;

} // namespace tracehook::rehearsal::nccl
