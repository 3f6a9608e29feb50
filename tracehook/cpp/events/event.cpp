#include "events/event.h"

namespace tracehook::core {

namespace {

struct Row {
    const char* name;
    Severity severity;
};

constexpr Row kRows[] = {
#define EVENT(enumerator, name, severity) {name, Severity::severity},
#include "events/events.def"
#undef EVENT
};
static_assert(sizeof(kRows) / sizeof(Row) == static_cast<std::size_t>(EventKind::kCount));

} // namespace

const char* event_name(EventKind kind) noexcept {
    return kind < EventKind::kCount ? kRows[static_cast<std::uint16_t>(kind)].name : "unknown";
}

Severity event_severity(EventKind kind) noexcept {
    return kind < EventKind::kCount ? kRows[static_cast<std::uint16_t>(kind)].severity
                                    : Severity::info;
}

} // namespace tracehook::core
