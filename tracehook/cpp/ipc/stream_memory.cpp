#include "ipc/stream_memory.h"

#include "cuda/runtime.h"

namespace tracehook::ipc {

namespace {

constexpr std::uint32_t kWait = 1;  // CU_STREAM_MEM_OP_WAIT_VALUE_32
constexpr std::uint32_t kWrite = 2; // CU_STREAM_MEM_OP_WRITE_VALUE_32
constexpr std::uint32_t kEqual = 1; // CU_STREAM_WAIT_VALUE_EQ

} // namespace

MemoryOperation wait_until_equal(std::uintptr_t address, std::uint32_t value) noexcept {
    return {kWait, address, value, kEqual};
}

MemoryOperation write_word(std::uintptr_t address, std::uint32_t value) noexcept {
    return {kWrite, address, value, 0};
}

Stream make_stream(int device) {
    constexpr unsigned kNonBlocking = 1;
    const Driver& cuda = driver();
    const OnDevice guard(device);
    const cuda::BesideCaptures relaxed;
    int least = 0;
    int greatest = 0;
    if (cuda.cudaDeviceGetStreamPriorityRange != nullptr) {
        check_runtime("cudaDeviceGetStreamPriorityRange",
                      cuda.cudaDeviceGetStreamPriorityRange(&least, &greatest));
    }
    if (cuda.cudaStreamCreateWithPriority == nullptr) {
        throw std::runtime_error("this CUDA runtime has no cudaStreamCreateWithPriority");
    }
    Stream stream = nullptr;
    check_runtime("cudaStreamCreateWithPriority",
                  cuda.cudaStreamCreateWithPriority(&stream, kNonBlocking, greatest));
    return stream;
}

bool is_capturing(Stream stream) noexcept {
    const auto ask = driver().cudaStreamIsCapturing;
    int status = 0;
    return stream != nullptr && ask != nullptr && cuda::absorbed(ask(stream, &status)) == 0 &&
           status != 0;
}

void enqueue(Stream stream, std::span<MemoryOperation> operations) {
    const auto batch = driver().cuStreamBatchMemOp_v2;
    if (batch == nullptr) {
        throw std::runtime_error("this CUDA driver has no cuStreamBatchMemOp: no semaphores");
    }
    check_driver("cuStreamBatchMemOp",
                 batch(stream, static_cast<unsigned>(operations.size()), operations.data(), 0));
}

} // namespace tracehook::ipc
