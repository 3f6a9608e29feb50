// An allocator for a MemPool that can give its memory back to the driver while torch keeps the
// segments, and put other memory at the same addresses: what a sleep mode does. Calls the driver
// through slots of its own.
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace {

constexpr std::size_t kPage = std::size_t{2} << 20;

struct Properties {
    int type = 1; // pinned
    int handle_types = 0;
    int location_type = 1; // a device
    int location = 0;
    void* unused = nullptr;
    unsigned char flags[8] = {};
};
struct Access {
    int location_type = 1;
    int location = 0;
    int flags = 3; // read and write
};
struct Block {
    std::size_t size;
    int device;
    std::uint64_t memory = 0;
    bool is_awake = false;
};

std::map<std::uintptr_t, Block> blocks;
std::mutex mutex;
int handle_types = 0;

} // namespace

extern "C" {
int cuMemCreate(std::uint64_t*, std::size_t, const Properties*, unsigned long long);
int cuMemAddressReserve(std::uintptr_t*, std::size_t, std::size_t, std::uintptr_t,
                        unsigned long long);
int cuMemAddressFree(std::uintptr_t, std::size_t);
int cuMemMap(std::uintptr_t, std::size_t, std::size_t, std::uint64_t, unsigned long long);
int cuMemUnmap(std::uintptr_t, std::size_t);
int cuMemSetAccess(std::uintptr_t, std::size_t, const Access*, std::size_t);
int cuMemRelease(std::uint64_t);
}

namespace {

int give_memory(std::uintptr_t address, Block& block) {
    Properties properties;
    properties.handle_types = handle_types;
    properties.location = block.device;
    Access access;
    access.location = block.device;
    int status = cuMemCreate(&block.memory, block.size, &properties, 0);
    status = status != 0 ? status : cuMemMap(address, block.size, 0, block.memory, 0);
    status = status != 0 ? status : cuMemSetAccess(address, block.size, &access, 1);
    block.is_awake = status == 0;
    return status;
}

int take_memory(std::uintptr_t address, Block& block) {
    const int status = cuMemUnmap(address, block.size);
    block.is_awake = false;
    return status != 0 ? status : cuMemRelease(block.memory);
}

template <typename Change> int change_all(bool awake, Change&& change) {
    const std::lock_guard guard(mutex);
    int status = 0;
    for (auto& [address, block] : blocks) {
        status |= block.is_awake == awake ? change(address, block) : 0;
    }
    return status;
}

} // namespace

extern "C" {

void set_handle_types(int types) {
    handle_types = types;
}

void* sleeper_malloc(std::size_t size, int device, void*) {
    const std::lock_guard guard(mutex);
    Block block{(size + kPage - 1) / kPage * kPage, device};
    std::uintptr_t address = 0;
    if (cuMemAddressReserve(&address, block.size, 0, 0, 0) != 0 ||
        give_memory(address, block) != 0) {
        return nullptr;
    }
    blocks[address] = block;
    return reinterpret_cast<void*>(address);
}

void sleeper_free(void* pointer, std::size_t, int, void*) {
    const std::lock_guard guard(mutex);
    const auto found = blocks.find(reinterpret_cast<std::uintptr_t>(pointer));
    if (found->second.is_awake) {
        take_memory(found->first, found->second);
    }
    cuMemAddressFree(found->first, found->second.size);
    blocks.erase(found);
}

int fall_asleep() {
    return change_all(true, take_memory);
}

int wake_up() {
    return change_all(false, give_memory);
}
}
