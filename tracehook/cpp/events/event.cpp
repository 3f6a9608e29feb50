#include "events/event.h"

namespace tracehook::core {

namespace {

constexpr const char* kNames[] = {
#define EVENT(enumerator, name, ...) name,
#include "events/events.def"
#undef EVENT
};

} // namespace

const char* event_name(EventKind kind) noexcept {
    return kind < EventKind::kCount ? kNames[static_cast<std::uint16_t>(kind)] : "unknown";
}

} // namespace tracehook::core
