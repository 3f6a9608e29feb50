// The registrar's part in a call: at which address NCCL gets a buffer.
#include "registrar/registrar.h"

#include <array>

namespace tracehook::registrar {

bool Registrar::registers_calls(const Communicator& communicator) const noexcept {
    const Identity& who = communicator.identity();
    return who.when == When::kAtCalls && who.local == Local::kOurs && registering() &&
           !abandoned() && communicator.registers_at_calls() == Communicator::Agreed::kYes;
}

bool Registrar::to_registered(Communicator& communicator, RegisteredFor what,
                              std::span<Buffer> buffers) noexcept {
    constexpr std::size_t kMost = 2;
    const Identity& who = communicator.identity();
    if (!registers_calls(communicator) || buffers.size() > kMost) {
        return false;
    }
    std::array<Segment, kMost> segments;
    std::array<std::uintptr_t, kMost> aliases{};
    {
        const std::lock_guard guard(mutex_);
        for (std::size_t i = 0; i < buffers.size(); ++i) {
            const auto found = ledger_.at(buffers[i].address);
            if (!found || found->device != who.device || found->memory != MemoryKind::kShareable ||
                buffers[i].size > found->end() - buffers[i].address) {
                if (!found || found->memory != MemoryKind::kPausable) { // all ranks leave that out
                    communicator.log_foreign(buffers[i].address, buffers[i].size);
                }
                return false;
            }
            segments[i] = *found;
        }
    }
    for (std::size_t i = 0; i < buffers.size(); ++i) {
        aliases[i] = aliases_.of(segments[i], what);
        if (aliases[i] == 0) {
            communicator.log_foreign(buffers[i].address, buffers[i].size);
            return false;
        }
    }
    for (std::size_t i = 0; i < buffers.size(); ++i) {
        if (!communicator.register_alias(segments[i], aliases[i], what, buffers[i].shows)) {
            return false;
        }
    }
    for (std::size_t i = 0; i < buffers.size(); ++i) {
        buffers[i].address += aliases[i] - segments[i].address;
    }
    return true;
}

std::uintptr_t Registrar::unregistered(const Communicator& communicator, std::uintptr_t address,
                                       std::size_t size, bool for_ever) noexcept {
    const Identity& who = communicator.identity();
    const bool ordinary = ordinary_is_shareable_.load(std::memory_order_relaxed);
    const bool by_others = who.local == Local::kObserved;
    const bool alike =
        by_others ? ordinary : who.when == When::kAtBirth && (ordinary || !who.one_host);
    if (abandoned() || alike) {
        return address;
    }
    std::optional<Segment> segment;
    {
        const std::lock_guard guard(mutex_);
        segment = ledger_.at(address);
    }
    if (!segment || segment->memory != MemoryKind::kShareable || size > segment->end() - address) {
        return address;
    }
    const std::uintptr_t alias = aliases_.of(*segment, RegisteredFor::kNothing, for_ever);
    return alias != 0 ? alias + (address - segment->address) : address;
}

} // namespace tracehook::registrar
