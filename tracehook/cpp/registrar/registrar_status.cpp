// What the registrar answers about itself.
#include "registrar/registrar.h"

namespace tracehook::registrar {

std::vector<CommunicatorPtr> Registrar::communicators() const {
    return locked([&] {
        std::vector<CommunicatorPtr> communicators;
        communicators.reserve(by_pointer_.size());
        for (const auto& [pointer, communicator] : by_pointer_) {
            communicators.push_back(communicator);
        }
        return communicators;
    });
}

std::vector<Segment> Registrar::segments() const {
    return locked([&] { return ledger_.all(); });
}

std::optional<Segment> Registrar::segment_at(std::uintptr_t address) const {
    return locked([&] { return ledger_.at(address); });
}

std::uint64_t Registrar::ledger_version() const {
    return locked([&] { return ledger_.version() + ranges_.version() + pausable_.version(); });
}

Registrar::Totals Registrar::totals() const {
    return locked([&] { return Totals{ledger_.count(), ledger_.bytes(), by_pointer_.size()}; });
}

} // namespace tracehook::registrar
