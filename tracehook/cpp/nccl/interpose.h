// The interposer: sits in front of all calls into NCCL, torch's and those of others (importers.h),
// and tells the registrar what they mean.
//
// The wrappers run on the thread that calls NCCL, which holds none of the allocator's locks (but
// perhaps the GIL, or torch's own). They return what NCCL returned, and change nothing of what NCCL
// was asked to do; but a collective whose buffers the ranks do not agree on is refused
// (placement.h), and ncclGetLastError then says why.
#pragma once

#include "elf/slots.h"
#include "registrar/registrar.h"

#include <string>
#include <vector>

namespace tracehook::nccl {

// Who registers segments with communicators that are made from now on.
enum class LocalMode {
#define LOCAL_MODE(enumerator, ...) enumerator,
#include "events/local_modes.def"
#undef LOCAL_MODE
};
void set_local_mode(LocalMode mode) noexcept;
registrar::Local local_of(bool registers_itself) noexcept;

// Installs the wrappers, once per process; later calls only report again. Returns the names of the
// calls that libtorch_cuda makes. Throws std::runtime_error if NCCL is not loaded, or if
// a slot cannot be written: then calls pass us by, and nothing may be registered beside them. There
// is no removal. `beside`: other functions that are to be stood before wherever NCCL's are. With
// the registrar switched off, or abandoned in a forked child, the wrappers pass through.
std::vector<std::string> install_interposer(registrar::Registrar& registrar,
                                            const std::vector<elf::Beside>& beside = {});

} // namespace tracehook::nccl
