// Live objects by the opaque handle that callers hold (the object's address), so that a stale or
// foreign handle is an error and not a crash.
//
// Any thread. `find` keeps the object alive for the caller although another thread removes it
// meanwhile.
#pragma once

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

namespace tracehook::rehearsal::cuda {

template <typename Object> class HandleTable {
  public:
    void* insert(std::shared_ptr<Object> object) {
        void* const handle = object.get();
        insert_as(handle, std::move(object));
        return handle;
    }

    // For a handle that callers have already.
    void insert_as(void* handle, std::shared_ptr<Object> object) {
        const std::unique_lock lock(mutex_);
        objects_.emplace(handle, std::move(object));
    }

    // Null if the handle names no live object.
    std::shared_ptr<Object> find(void* handle) const {
        const std::shared_lock lock(mutex_);
        const auto at = objects_.find(handle);
        return at == objects_.end() ? nullptr : at->second;
    }

    std::shared_ptr<Object> remove(void* handle) {
        const std::unique_lock lock(mutex_);
        const auto node = objects_.extract(handle);
        return node.empty() ? nullptr : node.mapped();
    }

  private:
    // Protects objects_. Nothing is locked while it is held.
    mutable std::shared_mutex mutex_;
    std::unordered_map<void*, std::shared_ptr<Object>> objects_;
};

} // namespace tracehook::rehearsal::cuda
