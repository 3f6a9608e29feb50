// A library that keeps something by address: listens to the feed of segments in C, and writes down
// what it hears.
#include "registrar/feed_abi.h"

#include <cstdint>
#include <cstring>

namespace {

constexpr int kMost = 4096;
tracehook_segment_change heard[kMost];
bool had_memory[kMost];
int count = 0;

} // namespace

extern "C" {
int cuMemGetAddressRange_v2(std::uintptr_t* base, std::size_t* size, std::uintptr_t address);

void listen(void*, const tracehook_segment_change* change) {
    std::uintptr_t base = 0;
    std::size_t size = 0;
    had_memory[count] = cuMemGetAddressRange_v2(&base, &size, change->address) == 0;
    std::memcpy(&heard[count++], change, sizeof(*change));
}

int heard_count() {
    return count;
}
int heard_what(int i) {
    return heard[i].what;
}
std::uint64_t heard_id(int i) {
    return heard[i].id;
}
int heard_with_memory(int i) {
    return had_memory[i] ? 1 : 0;
}
}
