// Libraries that this process has loaded already, by the first of some names. Nothing is loaded by
// this. Any thread.
#pragma once

#include <dlfcn.h>
#include <initializer_list>

namespace tracehook::elf {

// A handle for dlsym; null if none of them is loaded.
inline void* loaded_library(std::initializer_list<const char*> names) noexcept {
    for (const char* name : names) {
        if (void* library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD)) {
            return library;
        }
    }
    return nullptr;
}

} // namespace tracehook::elf
