// Waits and writes of 32-bit words, in the order of a stream's work; also captured into graphs.
#pragma once

#include "ipc/driver.h"

#include <span>

namespace tracehook::ipc {

MemoryOperation wait_until_equal(std::uintptr_t address, std::uint32_t value) noexcept;
// What the stream did before is visible to all devices before the word is.
MemoryOperation write_word(std::uintptr_t address, std::uint32_t value) noexcept;

// A stream that nothing of the program is on, of the highest priority: it shares no queue of the
// device with streams that wait. Never destroyed.
Stream make_stream(int device);

// Whether a graph gets what the stream is given now. The default stream is never asked: nothing
// captures it.
bool is_capturing(Stream stream) noexcept;

// Gives them to the stream, in this order. Any thread, with the stream's device current. Throws
// CudaError, or std::runtime_error if this driver has no such operations.
void enqueue(Stream stream, std::span<MemoryOperation> operations);

} // namespace tracehook::ipc
