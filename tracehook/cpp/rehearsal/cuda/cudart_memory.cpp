// The runtime's functions about device memory, page-locked host memory and pointers.
#include "cuda_abi.h"
#include "host_memory.h"
#include "memory.h"
#include "runtime_call.h"
#include "stream_table.h"

namespace tracehook::rehearsal::cuda {
namespace {

// The runtime promises that memory does not go while work on its device may use it.
void finish_work_on(int device) {
    if (!Stream::on_worker()) {
        StreamTable::instance().synchronize_device(device);
    }
}

} // namespace

EMU_EXPORT int cudaMalloc(void** pointer, size_t size) {
    return unsafe_call([&] {
        *pointer = size == 0 ? nullptr : Memory::instance().allocate(size, current_device());
        return size == 0 || *pointer != nullptr ? kSuccess : kMemoryAllocation;
    });
}

EMU_EXPORT int cudaFree(void* pointer) {
    return unsafe_call([&] {
        if (pointer == nullptr) {
            return kSuccess;
        }
        const auto allocation = Memory::instance().find(pointer, 1);
        if (!allocation) {
            return kInvalidValue;
        }
        finish_work_on(allocation->device);
        return Memory::instance().free(pointer) ? kSuccess : kInvalidValue;
    });
}

EMU_EXPORT int cudaMemGetInfo(size_t* available, size_t* total) {
    return context_call([&] {
        const Backing& backing = Backing::instance();
        *total = backing.capacity();
        *available = backing.capacity() - backing.used(current_device());
    });
}

EMU_EXPORT int cudaHostAlloc(void** pointer, size_t size, unsigned) {
    return unsafe_call([&] {
        *pointer = size == 0 ? nullptr : HostMemory::instance().allocate(size, current_device());
        return size == 0 || *pointer != nullptr ? kSuccess : kMemoryAllocation;
    });
}

EMU_ALIAS(cudaMallocHost, cudaHostAlloc)

EMU_EXPORT int cudaFreeHost(void* pointer) {
    return unsafe_call([&] {
        if (pointer == nullptr) {
            return kSuccess;
        }
        int device = 0;
        if (!HostMemory::instance().find(pointer, &device)) {
            return kInvalidValue;
        }
        finish_work_on(device);
        return HostMemory::instance().free(pointer) ? kSuccess : kInvalidValue;
    });
}

EMU_EXPORT int cudaHostRegister(void* pointer, size_t size, unsigned) {
    return unsafe_call([&] {
        if (pointer == nullptr || size == 0) {
            return kInvalidValue;
        }
        return HostMemory::instance().add(pointer, size, current_device())
                   ? kSuccess
                   : kHostMemoryAlreadyRegistered;
    });
}

EMU_EXPORT int cudaHostUnregister(void* pointer) {
    return unsafe_call([&] {
        int device = 0;
        if (!HostMemory::instance().find(pointer, &device)) {
            return kHostMemoryNotRegistered;
        }
        finish_work_on(device);
        return HostMemory::instance().remove(pointer) ? kSuccess : kHostMemoryNotRegistered;
    });
}

EMU_EXPORT int cudaHostGetDevicePointer(void** device_pointer, void* host_pointer, unsigned) {
    return context_call([&] {
        *device_pointer = host_pointer;
        return HostMemory::instance().find(host_pointer, nullptr) ? kSuccess : kInvalidValue;
    });
}

EMU_EXPORT int cudaPointerGetAttributes(PointerAttributes* attributes, const void* pointer) {
    return query_call([&] {
        *attributes = {};
        void* const address = const_cast<void*>(pointer);
        if (const auto allocation = Memory::instance().find(pointer, 1)) {
            attributes->type = kDeviceMemory;
            attributes->device = allocation->device;
            attributes->device_pointer = address;
        } else if (HostMemory::instance().find(pointer, &attributes->device)) {
            attributes->type = kHostMemory;
            attributes->device_pointer = address;
            attributes->host_pointer = address;
        } else {
            attributes->type = kUnregisteredMemory;
            attributes->device = kInvalidDeviceId;
            attributes->host_pointer = address;
        }
    });
}

} // namespace tracehook::rehearsal::cuda
