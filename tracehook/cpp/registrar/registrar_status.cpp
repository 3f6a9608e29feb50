// What the registrar answers about itself.
#include "registrar/registrar.h"

namespace tracehook::registrar {

std::vector<CommunicatorPtr> Registrar::communicators() const {
    if (abandoned()) {
        return {};
    }
    const std::lock_guard guard(mutex_);
    std::vector<CommunicatorPtr> communicators;
    communicators.reserve(by_pointer_.size());
    for (const auto& [pointer, communicator] : by_pointer_) {
        communicators.push_back(communicator);
    }
    return communicators;
}

std::vector<Segment> Registrar::segments() const {
    if (abandoned()) {
        return {};
    }
    const std::lock_guard guard(mutex_);
    return ledger_.all();
}

std::optional<Segment> Registrar::segment_at(std::uintptr_t address) const {
    if (abandoned()) {
        return std::nullopt;
    }
    const std::lock_guard guard(mutex_);
    return ledger_.at(address);
}

std::uint64_t Registrar::ledger_version() const {
    if (abandoned()) {
        return 0;
    }
    const std::lock_guard guard(mutex_);
    return ledger_.version() + ranges_.version() + pausable_.version();
}

Registrar::Totals Registrar::totals() const {
    if (abandoned()) {
        return {};
    }
    const std::lock_guard guard(mutex_);
    return {ledger_.count(), ledger_.bytes(), by_pointer_.size()};
}

} // namespace tracehook::registrar
