// The slots through which a loaded object calls functions of another one, and rewriting them.
//
// An object reaches such a function through a table of addresses (JUMP_SLOT and GLOB_DAT
// relocations). Writing our own address there puts us in front of every later call, also after the
// object was loaded, without LD_PRELOAD.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace tracehook::elf {

struct Replacement {
    const char* symbol;
    void* function;
};

// The same where a slot leads to that function alone, which is looked up when it is needed. Null:
// it is not loaded.
struct Beside {
    Replacement replacement;
    void* (*real)() noexcept;
};

// One slot; `replacement`: which of the replacements it is for.
struct Slot {
    std::uintptr_t address;
    std::size_t replacement;
    bool read_only;

    void* target() const noexcept; // where it leads now
};

// A loaded object as it lies in memory. `path` as the dynamic linker has it: empty for the program.
struct LoadedObject {
    std::string path;
    std::uintptr_t base = 0;
    std::uintptr_t begin = 0; // of what is mapped
    std::uintptr_t end = 0;
    std::vector<Slot> slots;

    std::string name() const { return path.substr(path.rfind('/') + 1); }
    bool contains(const void* address) const noexcept {
        const auto place = reinterpret_cast<std::uintptr_t>(address);
        return place >= begin && place < end;
    }
};

// How often objects were loaded and unloaded up to now: while it stays the same, so do the objects.
struct LoadCount {
    std::uint64_t loaded = 0;
    std::uint64_t unloaded = 0;
    bool operator==(const LoadCount&) const = default;
};
LoadCount load_count() noexcept;

// How many of the replacements, from the first, matter for that object, whose slots are not known
// yet. None saves the look at them.
using Choice = std::function<std::size_t(const LoadedObject& object)>;

// Every loaded object with its slots for the symbols that matter for it. Another thread may unload
// one meanwhile: hold it before its slots are touched. Throws std::bad_alloc.
std::vector<LoadedObject> loaded_objects(std::span<const Replacement> replacements,
                                         const Choice& choice);

// Writes the replacements into the slots, each atomically: other threads may be calling. Safe to
// repeat. Throws std::runtime_error, before it has changed anything, if a slot cannot be written;
// and if something else stands in one afterwards.
void rewrite(std::span<const Slot> slots, std::span<const Replacement> replacements);

} // namespace tracehook::elf
