#include "torch/segment_source.h"

#include "elf/slots.h"
#include "torch/source_state.h"

#include <dlfcn.h>
#include <unistd.h>
#include <utility>

namespace tracehook::torch {

namespace {

constexpr int kNoRoom = 2; // cudaErrorMemoryAllocation

bool is_able(Source& source, int device) noexcept {
    if (device < 0 || static_cast<std::size_t>(device) >= kDevices) {
        return false;
    }
    std::atomic<int>& known = source.able[static_cast<std::size_t>(device)];
    if (known.load(std::memory_order_relaxed) == 0) {
        known.store(cuda::makes_shareable(device) ? 1 : 2, std::memory_order_relaxed);
    }
    return known.load(std::memory_order_relaxed) == 1;
}

int allocate(std::uintptr_t* address, std::size_t size, int device, bool shareable) {
    Source& source = Source::instance();
    if (!shareable) {
        void* memory = nullptr;
        const int status = source.real.cudaMalloc(&memory, size);
        *address = reinterpret_cast<std::uintptr_t>(memory);
        return status;
    }
    std::vector<int> also;
    {
        const std::lock_guard guard(source.mutex);
        also = source.also[static_cast<std::size_t>(device)];
    }
    return cuda::allocate_shareable(address, size, device, also);
}

// Segments that were freed, and that a communicator held, may have the room. Also those that
// another thread frees just now.
int allocate_with_grave(std::uintptr_t* address, std::size_t size, int device, bool shareable) {
    Source& source = Source::instance();
    const std::uint64_t before = source.departed.load(std::memory_order_acquire);
    const int status = allocate(address, size, device, shareable);
    registrar::Registrar* const registrar = source.registrar.load(std::memory_order_acquire);
    if (status != kNoRoom || registrar == nullptr) {
        return status;
    }
    registrar->make_room(device);
    if (source.departed.load(std::memory_order_acquire) == before) {
        return status; // the allocator frees what it has cached, and asks again
    }
    if (!shareable) {
        cuda::absorbed(status);
    }
    return allocate(address, size, device, shareable);
}

// With the mutex.
void put(Source& source, std::uintptr_t address, Block block) {
    block.number = ++source.numbers;
    source.blocks[address] = block;
    source.segments += block.shareable ? 1 : 0;
    source.bytes += block.shareable ? block.size : 0;
}

// The allocator asks for whole multiples of 2 MiB; whoever asks for less gets what he always got.
int on_cudaMalloc(void** out, std::size_t size) {
    Source& source = Source::instance();
    const int device = current_device();
    bool shareable = source.replaced.load(std::memory_order_acquire) && size != 0 &&
                     size % cuda::kGranularity == 0 && is_able(source, device);
    std::uintptr_t address = 0;
    int status = allocate_with_grave(&address, size, device, shareable);
    if (shareable && status != kSuccess && status != kNoRoom) {
        source.refused.fetch_add(1, std::memory_order_relaxed);
        shareable = false;
        status = allocate_with_grave(&address, size, device, shareable);
    }
    if (status != kSuccess) {
        return status;
    }
    *out = reinterpret_cast<void*>(address);
    if (address != 0) {
        const std::lock_guard guard(source.mutex);
        put(source, address, {size, device, shareable});
    }
    return kSuccess;
}

// With the mutex.
Block take(Source& source, std::uintptr_t address) {
    const auto found = source.blocks.find(address);
    if (found == source.blocks.end()) {
        return {};
    }
    const Block block = found->second;
    source.blocks.erase(found);
    source.segments -= block.shareable ? 1 : 0;
    source.bytes -= block.shareable ? block.size : 0;
    return block;
}

// `is_done`: the device needs no wait.
int free_block(std::uintptr_t address, const Block& block, bool is_done) {
    if (block.descriptor >= 0) {
        close(block.descriptor);
    }
    return block.shareable ? cuda::free_shareable(address, block.size, block.device, is_done)
                           : Source::instance().real.cudaFree(reinterpret_cast<void*>(address));
}

int on_cudaFree(void* pointer) {
    Source& source = Source::instance();
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    Block block;
    {
        const std::lock_guard guard(source.mutex);
        const auto found = source.blocks.find(address);
        if (found != source.blocks.end() && found->second.kept) {
            found->second.freed = true;
            return kSuccess; // the device was waited for, as cudaFree does
        }
        block = take(source, address);
    }
    const int status = free_block(address, block, false);
    if (status != kSuccess && block.shareable) { // torch asks again
        const std::lock_guard guard(source.mutex);
        put(source, address, {block.size, block.device, true});
    }
    registrar::Registrar* const registrar = source.registrar.load(std::memory_order_acquire);
    if (block.device >= 0 && registrar != nullptr) {
        registrar->free_idle(block.device);
    }
    return status;
}

std::string library_of(const void* function) {
    Dl_info info;
    if (function == nullptr || dladdr(function, &info) == 0 || info.dli_fname == nullptr) {
        return "";
    }
    const std::string path = info.dli_fname;
    return path.substr(path.rfind('/') + 1);
}

} // namespace

bool SourcedMemory::can_keep(const registrar::Segment& segment) noexcept {
    Source& source = Source::instance();
    const std::lock_guard guard(source.mutex);
    const auto found = source.blocks.find(segment.address);
    return found != source.blocks.end() && found->second.device == segment.device &&
           found->second.size == segment.size &&
           static_cast<std::size_t>(segment.device) < kDevices;
}

void SourcedMemory::keep(const registrar::Segment& segment) noexcept {
    Source& source = Source::instance();
    const std::lock_guard guard(source.mutex);
    source.blocks[segment.address].kept = true;
}

void SourcedMemory::let_go(const registrar::Segment& segment) noexcept {
    Source& source = Source::instance();
    Block block;
    {
        const std::lock_guard guard(source.mutex);
        Block& kept = source.blocks[segment.address];
        if (!kept.freed) {
            kept.kept = false; // the free is still to come
            return;
        }
        block = take(source, segment.address);
        if (!block.shareable) {
            // cudaFree waits for the device, which may wait for a rank that this thread holds up.
            source.idle[static_cast<std::size_t>(block.device)].push_back(segment.address);
            source.idle_blocks.fetch_add(1, std::memory_order_release);
            return;
        }
    }
    free_block(segment.address, block, true);
    source.departed.fetch_add(1, std::memory_order_release);
}

bool SourcedMemory::free_idle(int device) noexcept {
    Source& source = Source::instance();
    if (source.idle_blocks.load(std::memory_order_acquire) == 0 || device < 0 ||
        static_cast<std::size_t>(device) >= kDevices) {
        return false;
    }
    int& freeing = source.freeing[static_cast<std::size_t>(device)];
    std::vector<std::uintptr_t> idle;
    {
        const std::lock_guard guard(source.mutex);
        idle = std::exchange(source.idle[static_cast<std::size_t>(device)], {});
        ++freeing;
    }
    {
        const cuda::BesideCaptures relaxed;
        for (const std::uintptr_t address : idle) {
            free_block(address, {}, false);
        }
    }
    const std::lock_guard guard(source.mutex);
    source.departed.fetch_add(idle.size(), std::memory_order_release);
    source.idle_blocks.fetch_sub(static_cast<int>(idle.size()), std::memory_order_release);
    return --freeing != 0;
}

std::string replace_segment_source(registrar::Registrar& registrar, bool virtual_memory) {
    Source& source = Source::instance();
    source.registrar.store(&registrar, std::memory_order_release);
    if (source.replaced.load(std::memory_order_acquire) ||
        (!virtual_memory && source.stands.load(std::memory_order_acquire))) {
        return "";
    }
    const std::vector<elf::Replacement> calls = {
#define REPLACED(name) {#name, reinterpret_cast<void*>(&on_##name)}
        REPLACED(cudaMalloc),
        REPLACED(cudaFree),
        REPLACED(cudaIpcGetMemHandle),
        REPLACED(cudaIpcOpenMemHandle),
        REPLACED(cudaIpcCloseMemHandle),
        REPLACED(cudaDeviceEnablePeerAccess),
#undef REPLACED
    };
    const std::string wanted = "libc10_cuda";
    const std::string other = "libtorch_cuda.";
    std::vector<elf::Slot> slots;
    for (const elf::LoadedObject& object :
         elf::loaded_objects(calls, [&](const elf::LoadedObject& one) {
             const std::string name = one.name();
             return name.starts_with(wanted) || name.starts_with(other) ? calls.size()
                                                                        : std::size_t{0};
         })) {
        const bool allocates = object.name().starts_with(wanted);
        for (const elf::Slot& slot : object.slots) {
            if (slot.replacement < 2 ? allocates : virtual_memory) {
                slots.push_back(slot);
            }
            if (allocates && slot.replacement < 2) {
                void* target = slot.target();
                if (object.contains(target)) { // not used yet
                    target = dlsym(RTLD_DEFAULT, calls[slot.replacement].symbol);
                }
                const std::string library = library_of(target);
                if (target != nullptr && target != calls[slot.replacement].function &&
                    !library.starts_with("libcudart")) {
                    return library + " stands before cudaMalloc and cudaFree already";
                }
            }
        }
    }
    Real found;
    void* const runtime = dlopen("libcudart.so.13", RTLD_LAZY | RTLD_NOLOAD);
    void* const older =
        runtime != nullptr ? nullptr : dlopen("libcudart.so.12", RTLD_LAZY | RTLD_NOLOAD);
    const auto look = [&](auto& target, const char* name) {
        void* function = dlsym(RTLD_DEFAULT, name);
        if (function == nullptr) {
            void* const library = runtime != nullptr ? runtime : older;
            function = library != nullptr ? dlsym(library, name) : nullptr;
        }
        target = reinterpret_cast<std::remove_reference_t<decltype(target)>>(function);
        return function != nullptr;
    };
    if (!look(found.cudaMalloc, "cudaMalloc") || !look(found.cudaFree, "cudaFree") ||
        !look(found.cudaIpcGetMemHandle, "cudaIpcGetMemHandle") ||
        !look(found.cudaIpcOpenMemHandle, "cudaIpcOpenMemHandle") ||
        !look(found.cudaIpcCloseMemHandle, "cudaIpcCloseMemHandle") ||
        !look(found.cudaDeviceEnablePeerAccess, "cudaDeviceEnablePeerAccess")) {
        return "no CUDA runtime is loaded";
    }
    if (slots.empty()) {
        return "this torch does not call cudaMalloc through a slot";
    }
    source.real = found;
    elf::rewrite(slots, calls);
    source.stands.store(true, std::memory_order_release);
    source.replaced.store(virtual_memory, std::memory_order_release);
    return "";
}

std::vector<elf::Beside> sharing_calls() {
    if (!Source::instance().replaced.load(std::memory_order_acquire)) {
        return {};
    }
#define BESIDE(name)                                                                               \
    {                                                                                              \
        {#name, reinterpret_cast<void*>(&on_##name)},                                              \
            []() noexcept { return reinterpret_cast<void*>(Source::instance().real.name); }        \
    }
    return {BESIDE(cudaIpcGetMemHandle), BESIDE(cudaIpcOpenMemHandle),
            BESIDE(cudaIpcCloseMemHandle)};
#undef BESIDE
}

bool is_made_elsewhere(std::uintptr_t address) noexcept {
    Source& source = Source::instance();
    if (!source.stands.load(std::memory_order_acquire)) {
        return false;
    }
    const std::lock_guard guard(source.mutex);
    return !source.blocks.contains(address);
}

SourceTold segment_source() noexcept {
    Source& source = Source::instance();
    const std::lock_guard guard(source.mutex);
    return {source.replaced.load(std::memory_order_acquire), source.segments, source.bytes,
            source.refused.load(std::memory_order_relaxed)};
}

} // namespace tracehook::torch
