// Loads the hook library that fits the running torch, and refuses one that does not.
//
// Knows hook_abi.h, not torch. Not thread-safe: used by the service while it starts, under the
// service's lock.
#pragma once

#include "torch/hook_abi.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace tracehook::torch {

class HookLibrary {
  public:
    // Throws std::runtime_error with one line (what was found, what was expected) if the file
    // cannot be loaded, has another struct_size, or was built for another torch minor than
    // `torch_version` ("2.11.0+cu130").
    HookLibrary(const std::string& path, const std::string& torch_version);

    const char* torch_version() const noexcept { return api_->torch_version; }

    // Each throws std::runtime_error with torch's own words.
    th_allocator_info describe() const;
    void attach(th_segment_callback callback,
                void* user) const;                  // once per process: torch has no detach
    std::vector<th_segment_event> snapshot() const; // takes the allocator's locks
    void watch_blocks(const std::atomic<std::int32_t>& scopes) const; // before attach()
    void watch_frees(const std::array<std::atomic<std::uint64_t>, 2>& span) const; // likewise
    // See hook_abi.h; each takes the allocator's lock.
    void begin_pool(int device, const std::uint64_t pool[2], int32_t (*mine)(void* user),
                    void* user) const;
    void end_pool(int device, const std::uint64_t pool[2]) const;
    bool quiet(int device) const noexcept { return api_->quiet(device) != 0; }
    void drop_pool(int device, const std::uint64_t pool[2]) const;
    void empty_pool(const std::uint64_t pool[2]) const noexcept { api_->empty_pool(pool); }
    // False if torch had no memory for it: then it has looked all the same.
    bool settle(int device) const noexcept;
    bool looks_beside_pools() const noexcept { return api_->looks_beside_pools != 0; }
    bool capturing(int device) const noexcept { return api_->capturing(device) != 0; }

  private:
    const th_hook_api* api_;
};

} // namespace tracehook::torch
