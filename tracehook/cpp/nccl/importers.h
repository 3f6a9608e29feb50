// Who in this process calls NCCL, and putting the interposer's functions in front of their calls:
// every loaded object with slots for them that lead to the NCCL that torch uses (libtorch_cuda, C++
// extensions, bindings), and whoever looks the functions up by name (ctypes, Cython bindings).
//
// Objects that are loaded later are looked at when the interpreter has loaded one by its path, when
// ctypes looks a function of NCCL up, and when a communicator begins. What was looked up before the
// first call of intercept() stays as it is.
//
// Any thread. Takes a lock of its own and the dynamic linker's, so a caller holds nothing that code
// may want while it is being loaded, but the GIL.
#pragma once

#include "elf/slots.h"

#include <functional>
#include <span>
#include <string>
#include <vector>

namespace tracehook::nccl {

// Puts these functions in front of all calls; the first call decides which. `beside`: functions of
// another library, in the slots of all objects but torch's. Returns the symbols
// that libtorch_cuda calls. Throws std::runtime_error if a slot cannot be written: then some calls
// pass us by.
std::vector<std::string> intercept(const std::vector<elf::Replacement>& calls,
                                   const std::vector<elf::Beside>& beside = {});

// Looks for objects that were loaded since. Next to nothing if there are none. Does nothing before
// intercept().
void look_for_importers() noexcept;

// Hears that a slot of an object that was loaded later cannot be written. Called without a lock of
// this module, on the thread that loaded the object.
using RefusedObserver = std::function<void()>;
void set_refused_observer(RefusedObserver observer);

} // namespace tracehook::nccl
