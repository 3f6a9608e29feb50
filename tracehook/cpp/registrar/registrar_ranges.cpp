// The registrar's part for expandable segments. No record of NCCL can grow or shrink, and to
// replace one takes it from under operations that use the rest of it; docs/design.md, "Expandable
// segments".
#include "registrar/registrar.h"

namespace tracehook::registrar {

using namespace events;

void Registrar::log_mapped(const Range& range, bool adopted) noexcept {
    ring_.push(make_event(row::RangeMap{.addr = range.address,
                                        .size = range.size,
                                        .total = ranges_.bytes(),
                                        .adopted = adopted},
                          {.device = static_cast<std::int16_t>(range.device)}));
}

void Registrar::range_mapped(int device, std::uintptr_t address, std::size_t size) noexcept {
    locked([&] {
        log_overdue_frees(device);
        ranges_.map(device, address, size);
        log_mapped({device, address, size}, false);
    });
}

void Registrar::range_unmapped(int device, std::uintptr_t address, std::size_t size) noexcept {
    locked([&] {
        log_overdue_frees(device);
        ranges_.unmap(device, address, size);
        ring_.push(
            make_event(row::RangeUnmap{.addr = address, .size = size, .total = ranges_.bytes()},
                       {.device = static_cast<std::int16_t>(device)}));
    });
}

void Registrar::adopt_range(int device, std::uintptr_t address, std::size_t size) {
    locked([&] {
        for (const Range& added : ranges_.unknown(device, address, size)) {
            ranges_.map(added.device, added.address, added.size);
            log_mapped(added, true);
        }
    });
}

std::vector<Range> Registrar::ranges() const {
    return locked([&] { return ranges_.all(); });
}

std::optional<Range> Registrar::range_at(std::uintptr_t address) const {
    return locked([&] { return ranges_.at(address); });
}

} // namespace tracehook::registrar
