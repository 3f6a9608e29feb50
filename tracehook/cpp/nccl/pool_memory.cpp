#include "nccl/pool_memory.h"

#include "cuda/device_wait.h"
#include "cuda/rising_addresses.h"
#include "cuda/runtime.h"
#include "nccl/api.h"
#include "nccl/traits.h"
#include "windows/scope_stack.h"

#include <atomic>
#include <string>

namespace tracehook::nccl {

namespace {

std::atomic<windows::Bank*> target{nullptr};

cuda::RisingAddresses& addresses() {
    static cuda::RisingAddresses* const made = new cuda::RisingAddresses; // outlives all threads
    return *made;
}

void* allocate(std::size_t size) {
    void* memory = nullptr;
    const int result = api().ncclMemAlloc(&memory, size);
    if (result == kSuccess) {
        const std::uintptr_t rising = addresses().add(reinterpret_cast<std::uintptr_t>(memory));
        return rising != 0 ? reinterpret_cast<void*>(rising) : memory;
    }
    // NCCL leaves the error of the runtime behind. Its next call on this thread would find it, and
    // fail for it, in the middle of a collective.
    cuda::absorbed(result);
    return nullptr;
}

int release(void* memory) {
    const std::uintptr_t own = addresses().remove(reinterpret_cast<std::uintptr_t>(memory));
    return api().ncclMemFree(reinterpret_cast<void*>(own));
}

void synchronize() {
    cuda::wait_for_device(-1);
}

int enter_device(int device) {
    const int before = current_device();
    if (device >= 0 && before != device) {
        cuda::absorbed(api().cudaSetDevice(device));
    }
    return before;
}

} // namespace

std::optional<NoBank> open_bank(windows::Bank& bank, std::size_t limit_bytes_per_device) {
    const Api& real = api();
    if (!has(Trait::kWindows, version())) {
        const int first = kTraits[static_cast<std::size_t>(Trait::kWindows)].first;
        return NoBank{"nccl_too_old", "NCCL " + std::to_string(version()) + " has no windows: " +
                                          std::to_string(first) + " or newer is needed"};
    }
    if (real.ncclMemAlloc == nullptr || real.ncclCommWindowRegister == nullptr ||
        cuda::runtime().cudaDeviceSynchronize == nullptr) {
        return NoBank{"unavailable",
                      "this NCCL, or the CUDA runtime, lacks a function that windows need"};
    }
    bank.open({allocate, release, synchronize, enter_device}, limit_bytes_per_device);
    target.store(&bank, std::memory_order_release);
    return std::nullopt;
}

bool may_be_of_pools(std::uintptr_t address) noexcept {
    const windows::Bank* const bank = target.load(std::memory_order_acquire);
    return bank != nullptr && address >= bank->span()[0].load(std::memory_order_relaxed) &&
           address < bank->span()[1].load(std::memory_order_relaxed);
}

void* allocate_segment(std::size_t size, int device, Stream) noexcept {
    windows::Bank* const bank = target.load(std::memory_order_acquire);
    if (bank == nullptr) {
        return nullptr;
    }
    const windows::ScopeFrame* const scope = windows::ScopeStack::current();
    return bank->take(
        {scope != nullptr ? scope->pool : 0, scope != nullptr ? scope->owner : 0, device, size});
}

void free_segment(void* memory, std::size_t, int, Stream) noexcept {
    if (windows::Bank* const bank = target.load(std::memory_order_acquire)) {
        bank->give_back(reinterpret_cast<std::uintptr_t>(memory));
    }
}

} // namespace tracehook::nccl
