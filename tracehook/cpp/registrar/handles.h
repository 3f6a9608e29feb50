// The handles of one communicator, by segment. A flat table, indexed by the segment's slot: 64
// bytes a registration, no search and no allocation on the way of a new communicator over thousands
// of segments. Not thread-safe.
#pragma once

#include "registrar/segment.h"

#include <cstdint>
#include <utility>
#include <vector>

namespace tracehook::registrar {

class Handles {
  public:
    struct Held {
        Segment segment; // id 0: the slot is empty
        void* handle = nullptr;
        bool looked_at = false; // whether somebody asked what the library made of it
        bool stuck = false;     // the library failed to undo it
    };

    // True once, for a segment that is held.
    bool first_look(const Segment& segment) noexcept {
        return !std::exchange(slots_[segment.slot].looked_at, true);
    }

    // What the slot holds, for a segment that is held.
    void* handle_of(const Segment& segment) const noexcept { return slots_[segment.slot].handle; }

    std::size_t size() const noexcept { return size_; }

    // Room for every slot up to `slot`, so that put() does not allocate.
    void make_room(std::uint32_t slot) {
        if (slot >= slots_.size()) {
            slots_.resize(std::size_t{slot} + 1);
        }
    }

    bool contains(const Segment& segment) const noexcept {
        return segment.slot < slots_.size() && slots_[segment.slot].segment.id == segment.id;
    }

    void put(const Segment& segment, void* handle) noexcept {
        slots_[segment.slot] = {segment, handle};
        ++size_;
    }

    void drop(const Segment& segment) noexcept {
        slots_[segment.slot] = {};
        --size_;
    }

    void mark_stuck(const Segment& segment) noexcept { slots_[segment.slot].stuck = true; }
    bool is_stuck(const Segment& segment) const noexcept {
        return contains(segment) && slots_[segment.slot].stuck;
    }

    // The held ones, by slot: for undoing them all.
    std::vector<Segment> segments() const {
        std::vector<Segment> segments;
        segments.reserve(size_);
        for (const Held& held : slots_) {
            if (held.segment.id != 0) {
                segments.push_back(held.segment);
            }
        }
        return segments;
    }

    void clear() noexcept {
        slots_.clear();
        size_ = 0;
    }

  private:
    std::vector<Held> slots_;
    std::size_t size_ = 0;
};

} // namespace tracehook::registrar
