// One thing that happened, as the ring keeps it: fixed size, no pointers, readable from the file by
// another process. make_event() and own_of() work on what the caller has: any thread, no lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <new>
#include <type_traits>

namespace tracehook::events {

enum class EventKind : std::uint16_t {
#define EVENT(name, ...) k##name,
#define LINE(name, ...) k##name,
#include "events/events.def"
    kCount,
};

inline constexpr std::size_t kOwnBytes = 40;
inline constexpr std::uint64_t kNoSize = ~std::uint64_t{0};
inline constexpr std::uint32_t kNoIndex = ~std::uint32_t{0};
inline constexpr std::uint64_t kOfPool = std::uint64_t{1} << 63; // the segment is one of our pools'
enum class Maybe : std::uint8_t { kUnsaid, kFalse, kTrue };

struct Head {
#define HEAD(type, member, nothing) type member = nothing;
#include "events/head.def"
#undef HEAD
};

// 96 bytes, little endian; `log/records.py` reads the same layout.
struct Event : Head {
    alignas(std::uint64_t) std::byte own[kOwnBytes]{}; // a struct of namespace row, by the kind
};
static_assert(sizeof(Head) == 56 && sizeof(Event) == 96, "the ring's file format depends on it");

// A member of a row. It has no value by itself: a push that does not name it does not compile.
template <typename T> struct Given {
    constexpr Given(T given) noexcept : value(given) {}
    template <typename E>
        requires std::is_enum_v<E>
    constexpr Given(E given) noexcept : value(static_cast<T>(given)) {}
    constexpr operator T() const noexcept { return value; }
    template <typename E>
        requires std::is_enum_v<E>
    constexpr bool operator==(E other) const noexcept {
        return value == static_cast<T>(other);
    }

    T value;
};

namespace types {
#define TYPE(name, type, ...) using name = type;
#define SAID_TYPE(...)
#include "events/types.def"
#undef TYPE
#undef SAID_TYPE
} // namespace types

// What each event has of its own: row::PoolGrow and the others.
namespace row {
#define OWN(type, member) Given<types::type> member;
#define SHOW(member) static constexpr bool shows_##member = true;
#define EVENT(name, text, severity, fields, ...)                                                   \
    struct name {                                                                                  \
        static constexpr EventKind kKind = EventKind::k##name;                                     \
        fields                                                                                     \
    };
#include "events/events.def"
} // namespace row

// Python reads the members one after the other, without padding between them.
consteval bool lie_close(std::initializer_list<std::size_t> sizes) {
    std::size_t end = 0;
    for (const std::size_t size : sizes) {
        if (size != 0 && end % size != 0) {
            return false;
        }
        end += size;
    }
    return end <= kOwnBytes;
}
#define OWN(type, member) , sizeof(types::type)
#define EVENT(name, text, severity, fields, ...)                                                   \
    static_assert(lie_close({std::size_t{0} fields}), "widest first, 40 bytes: " text);
#include "events/events.def"

template <typename Row>
concept HasResult = requires { Row::shows_result; };

template <typename Row> Event with_own(const Head& head, const Row& own) noexcept {
    Event event{head};
    event.kind = Row::kKind;
    if constexpr (!std::is_empty_v<Row>) {
        std::memcpy(event.own, &own, sizeof own);
    }
    return event;
}

template <typename Row>
    requires(!HasResult<Row>)
Event make_event(const Row& own, const Head& head = {}) noexcept {
    return with_own(head, own);
}

// Of an event that tells of a call: with its result, 0 or an error number.
template <HasResult Row>
Event make_event(const Row& own, int result, const Head& head = {}) noexcept {
    Event event = with_own(head, own);
    event.result = result;
    return event;
}

// The own fields of an event of this kind.
template <typename Row> const Row& own_of(const Event& event) noexcept {
    return *std::launder(reinterpret_cast<const Row*>(event.own));
}

} // namespace tracehook::events
