// The runtime's functions about variables that live on the device. Each gets emulated memory, per
// device, when it is first asked for.
#include "copy.h"
#include "cuda_abi.h"
#include "devices.h"
#include "memory.h"
#include "runtime_call.h"

#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace tracehook::rehearsal::cuda {
namespace {

class Symbols {
  public:
    static Symbols& instance() { return leaked<Symbols>(); }

    void add(const void* host, size_t size) {
        const std::lock_guard lock(mutex_);
        sizes_.insert_or_assign(host, size);
    }

    Status address(const void* host, int device, void** pointer) {
        const std::lock_guard lock(mutex_);
        const auto size = sizes_.find(host);
        if (size == sizes_.end()) {
            return kInvalidSymbol;
        }
        void*& memory = addresses_[{host, device}];
        if (memory == nullptr) {
            memory = Memory::instance().allocate(size->second, device);
        }
        *pointer = memory;
        return memory == nullptr ? kMemoryAllocation : kSuccess;
    }

  private:
    // Protects both maps. Comes before the mutexes of the memory.
    std::mutex mutex_;
    std::unordered_map<const void*, size_t> sizes_;
    std::map<std::pair<const void*, int>, void*> addresses_;
};

} // namespace

EMU_EXPORT void __cudaRegisterVar(void**, char* host, char*, const char*, int, size_t size, int,
                                  int) {
    Symbols::instance().add(host, size);
}

EMU_EXPORT int cudaGetSymbolAddress(void** pointer, const void* symbol) {
    return context_call(
        [&] { return Symbols::instance().address(symbol, current_device(), pointer); });
}

EMU_EXPORT int cudaMemcpyToSymbol(const void* symbol, const void* from, size_t size, size_t offset,
                                  int) {
    return context_call([&] {
        void* pointer = nullptr;
        const Status status = Symbols::instance().address(symbol, current_device(), &pointer);
        return status != kSuccess ? status
                                  : copy_and_wait(static_cast<char*>(pointer) + offset, from, size);
    });
}

} // namespace tracehook::rehearsal::cuda
