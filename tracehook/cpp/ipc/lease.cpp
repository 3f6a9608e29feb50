#include "ipc/lease.h"

namespace tracehook::ipc {

namespace {

constexpr std::int32_t kCuda = 2;
constexpr std::uint8_t kUnsigned = 1;

struct LeasedTensor {
    DlTensor tensor;
    std::int64_t shape;
    std::int64_t stride;
    Leases leases;
};

void end_lease(DlTensor* tensor) {
    auto* const leased = static_cast<LeasedTensor*>(tensor->context);
    leased->leases->fetch_sub(1, std::memory_order_release);
    delete leased;
}

} // namespace

DlTensor* lend(std::uintptr_t address, std::size_t size, int device, const Leases& leases) {
    auto* const leased = new LeasedTensor{{}, static_cast<std::int64_t>(size), 1, leases};
    leased->tensor = {reinterpret_cast<void*>(address),
                      kCuda,
                      device,
                      1,
                      kUnsigned,
                      8,
                      1,
                      &leased->shape,
                      &leased->stride,
                      0,
                      leased,
                      &end_lease};
    leases->fetch_add(1, std::memory_order_acq_rel);
    return &leased->tensor;
}

} // namespace tracehook::ipc
