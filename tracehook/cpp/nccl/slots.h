// The slots through which a loaded library calls NCCL, and rewriting them.
//
// A library reaches a function of another one through a table of addresses (JUMP_SLOT and GLOB_DAT
// relocations). Writing our own address there puts us in front of every later call, also after the
// library was imported, without LD_PRELOAD.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tracehook::nccl {

struct Replacement {
    const char* symbol;
    void* function;
};

// Rewrites the slots of every loaded library whose file name starts with `library`. Returns the
// symbols that were found, in the order of `replacements`, each once. Safe to repeat. Each slot
// changes atomically: other threads may be calling. Throws std::runtime_error, before it has
// changed anything, if a slot cannot be written; and if something else stands in one afterwards.
std::vector<std::string> rewrite_slots(std::string_view library,
                                       std::span<const Replacement> replacements);

} // namespace tracehook::nccl
