#include "folding.h"

#include "reduction.h"

#include <algorithm>
#include <memory>

namespace tracehook::rehearsal::nccl {

namespace {

constexpr std::size_t kChunk = 1U << 16; // elements that are reduced at a time

} // namespace

bool fold_ranks(const std::vector<Descriptor>& ranks, std::size_t count, const ReadRank& read,
                std::byte* out) {
    const Descriptor& any = ranks.front();
    const Reduction reduction(any.type, any.op, static_cast<int>(ranks.size()));
    const std::size_t size = element_size(any.type);
    const std::size_t chunk = std::min<std::size_t>(kChunk, count);
    const std::unique_ptr<std::byte[]> elements(new std::byte[chunk * size]);
    const std::unique_ptr<std::byte[]> wide(new std::byte[chunk * Reduction::kWide]);
    for (std::size_t done = 0; done < count; done += chunk) {
        const std::size_t now = std::min(chunk, count - done);
        for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
            if (!read(rank, done * size, elements.get(), now * size)) {
                return false;
            }
            const void* scalar = ranks[rank].multiplies ? ranks[rank].scalar : nullptr;
            reduction.fold(wide.get(), elements.get(), now, rank == 0, scalar);
        }
        reduction.store(out + done * size, wide.get(), now);
    }
    return true;
}

} // namespace tracehook::rehearsal::nccl
