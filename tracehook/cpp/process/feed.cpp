// The C functions of registrar/feed_abi.h, for the registrar of this process.
#include "process/process.h"
#include "registrar/feed_abi.h"

using tracehook::process::Process;

extern "C" __attribute__((visibility("default"))) std::uint64_t
tracehook_subscribe(tracehook_segment_listener listener, void* user) {
    Process* const current = Process::current();
    return current == nullptr ? 0 : current->registrar().subscribe(listener, user);
}

extern "C" __attribute__((visibility("default"))) void
tracehook_unsubscribe(std::uint64_t subscription) {
    if (Process* const current = Process::current()) {
        current->registrar().unsubscribe(subscription);
    }
}
