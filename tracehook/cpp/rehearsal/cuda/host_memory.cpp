#include "host_memory.h"

#include "cuda_abi.h"

#include <iterator>

#include <sys/mman.h>

namespace tracehook::rehearsal::cuda {

void* HostMemory::allocate(size_t size, int device) {
    void* const pointer =
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pointer == MAP_FAILED) {
        return nullptr;
    }
    const std::lock_guard lock(mutex_);
    blocks_.insert_or_assign(reinterpret_cast<uintptr_t>(pointer), Block{size, device, true});
    return pointer;
}

bool HostMemory::free(void* pointer) {
    const size_t size = take(pointer, true);
    return size != 0 && munmap(pointer, size) == 0;
}

bool HostMemory::add(void* pointer, size_t size, int device) {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    const std::lock_guard lock(mutex_);
    if (overlaps(address, size)) {
        return false;
    }
    blocks_.emplace(address, Block{size, device, false});
    return true;
}

bool HostMemory::remove(void* pointer) {
    return take(pointer, false) != 0;
}

size_t HostMemory::take(void* pointer, bool allocated) {
    const std::lock_guard lock(mutex_);
    const auto at = blocks_.find(reinterpret_cast<uintptr_t>(pointer));
    if (at == blocks_.end() || at->second.allocated != allocated) {
        return 0;
    }
    const size_t size = at->second.size;
    blocks_.erase(at);
    return size;
}

bool HostMemory::find(const void* pointer, int* device) const {
    const std::lock_guard lock(mutex_);
    const auto at = holder(reinterpret_cast<uintptr_t>(pointer));
    if (at == blocks_.end()) {
        return false;
    }
    give(device, at->second.device);
    return true;
}

std::map<uintptr_t, HostMemory::Block>::const_iterator HostMemory::holder(uintptr_t address) const {
    const auto after = blocks_.upper_bound(address);
    if (after == blocks_.begin()) {
        return blocks_.end();
    }
    const auto at = std::prev(after);
    return address - at->first < at->second.size ? at : blocks_.end();
}

bool HostMemory::overlaps(uintptr_t address, size_t size) const {
    const auto next = blocks_.lower_bound(address);
    return holder(address) != blocks_.end() ||
           (next != blocks_.end() && next->first - address < size);
}

} // namespace tracehook::rehearsal::cuda
