#include "ipc/lease.h"

namespace tracehook::ipc {

namespace {

constexpr std::int32_t kCuda = 2;
constexpr std::uint8_t kUnsigned = 1;

struct Lent {
    DlTensor tensor;
    std::int64_t shape;
    std::int64_t stride;
    Leases leases;
};

void end(DlTensor* tensor) {
    auto* const lent = static_cast<Lent*>(tensor->context);
    lent->leases->fetch_sub(1, std::memory_order_release);
    delete lent;
}

} // namespace

DlTensor* lend(std::uintptr_t address, std::size_t size, int device, const Leases& leases) {
    auto* const lent = new Lent{{}, static_cast<std::int64_t>(size), 1, leases};
    lent->tensor = {reinterpret_cast<void*>(address),
                    kCuda,
                    device,
                    1,
                    kUnsigned,
                    8,
                    1,
                    &lent->shape,
                    &lent->stride,
                    0,
                    lent,
                    &end};
    leases->fetch_add(1, std::memory_order_acq_rel);
    return &lent->tensor;
}

} // namespace tracehook::ipc
