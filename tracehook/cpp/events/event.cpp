#include "events/event.h"

namespace tracehook::events {

namespace {

constexpr const char* kNames[] = {
#define EVENT(name, text, ...) text,
#define LINE(name, text, ...) text,
#include "events/events.def"
};

} // namespace

const char* event_name(EventKind kind) noexcept {
    return kind < EventKind::kCount ? kNames[static_cast<std::uint16_t>(kind)] : "unknown";
}

} // namespace tracehook::events
