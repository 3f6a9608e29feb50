#include "cuda/rising_addresses.h"

#include "cuda/held_memory.h"
#include "cuda/runtime.h"
#include "cuda/segment_memory.h"

#include <array>

namespace tracehook::cuda {

namespace {

// Where the first lies if it can: far from where libraries and the driver's own addresses are.
constexpr std::uintptr_t kFirst = std::uintptr_t{1} << 44;
constexpr std::uintptr_t kEnd = std::uintptr_t{1} << 47; // of a process's addresses
constexpr std::uintptr_t kStep = std::uintptr_t{1} << 30;
constexpr int kDevices = 64;

// The access that each device has to what is mapped at an address.
std::size_t accesses(std::uintptr_t address, std::array<Access, kDevices>& found) noexcept {
    const auto ask = virtual_memory().cuMemGetAccess;
    std::size_t count = 0;
    for (int device = 0; device < kDevices; ++device) {
        const Location location{1, device};
        unsigned long long flags = 0;
        if (ask(&flags, &location, address) != 0) {
            break; // there are no more devices
        }
        if (flags != 0) {
            found[count++] = {location, static_cast<int>(flags)};
        }
    }
    return count;
}

} // namespace

std::uintptr_t RisingAddresses::reserve(std::size_t size) const noexcept {
    const auto& driver = virtual_memory();
    const bool is_first = mappings_.empty();
    const std::uintptr_t floor =
        is_first ? 0 : mappings_.rbegin()->first + mappings_.rbegin()->second.size;
    std::uintptr_t wanted = is_first ? kFirst : floor;
    // The driver takes a wish for a hint: where that is taken it gives any other address.
    for (std::uintptr_t step = kStep; wanted < kEnd; step *= 2) {
        std::uintptr_t place = 0;
        if (driver.cuMemAddressReserve(&place, size, 0, wanted, 0) != 0) {
            return 0;
        }
        if (place >= floor) {
            return place;
        }
        driver.cuMemAddressFree(place, size);
        wanted = floor + step;
    }
    return 0;
}

std::uintptr_t RisingAddresses::add(std::uintptr_t memory) noexcept {
    const auto& driver = virtual_memory();
    if (!driver.passes_memory() || driver.cuMemGetAccess == nullptr) {
        return 0;
    }
    const BesideCaptures relaxed;
    const HeldMemory held(memory);
    std::uintptr_t base = 0;
    std::size_t size = 0;
    std::array<Access, kDevices> access;
    if (!held || driver.cuMemGetAddressRange_v2(&base, &size, memory) != 0 || base != memory) {
        return 0;
    }
    const std::size_t devices = accesses(memory, access);
    if (devices == 0) {
        return 0;
    }
    const std::lock_guard guard(mutex_);
    const std::uintptr_t place = reserve(size);
    if (place == 0 || map_at(place, held.memory, size, {access.data(), devices}) != 0) {
        return 0;
    }
    mappings_.emplace(place, Mapping{memory, size});
    return place;
}

std::uintptr_t RisingAddresses::remove(std::uintptr_t address) noexcept {
    const std::lock_guard guard(mutex_);
    const auto found = mappings_.find(address);
    if (found == mappings_.end()) {
        return address;
    }
    const auto [memory, size] = found->second;
    const BesideCaptures relaxed;
    unmap(address, size);
    mappings_.erase(found);
    return memory;
}

} // namespace tracehook::cuda
