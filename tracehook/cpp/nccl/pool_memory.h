// The segment functions of our pools: what torch's pluggable allocator calls, over ncclMemAlloc and
// the bank.
#pragma once

#include "nccl/abi.h"
#include "windows/bank.h"

#include <cstdint>
#include <optional>
#include <string>

namespace tracehook::nccl {

// Why there can be no bank: a reason of tracehook.explain, and one line.
struct NoBank {
    const char* reason;
    std::string text;
};

// Opens the bank over ncclMemAlloc, once. Returns nothing if it did.
std::optional<NoBank> open_bank(windows::Bank& bank, std::size_t limit_bytes_per_device);

// Whether memory may be that of a pool of ours: it lies where one ever was. Any thread, no lock.
bool may_be_of_pools(std::uintptr_t address) noexcept;

// Called by torch with the allocator's lock held, on the allocating (freeing) thread, with `device`
// current. Null: out of memory. A segment belongs to the pool of the thread's innermost scope.
void* allocate_segment(std::size_t size, int device, Stream stream) noexcept;
void free_segment(void* memory, std::size_t size, int device, Stream stream) noexcept;

} // namespace tracehook::nccl
