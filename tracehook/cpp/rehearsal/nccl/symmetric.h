// The symmetric kernels: collectives on windows, in which a rank names the memory of the others by
// its own placement.
//
// A rank reads, and writes, the other ranks' memory at the position and the offset at which *its
// own* buffer lies. So ranks that registered other windows at one position get wrong values, and
// nobody notices. Here no rank writes the memory of another: each works out what the others would
// have written into its own, and writes that itself, after all have read.
//
// On the thread of a stream, holding nothing.
#pragma once

#include "communicator.h"
#include "descriptor.h"
#include "operation.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tracehook::rehearsal::nccl {

// All-reduce, all-gather and reduce-scatter on windows; reductions only as sum or average of
// floats of up to 32 bits.
bool takes_symmetric_path(const Operation& operation, const Communicator& communicator);

class SymmetricOperation {
  public:
    // `all` are the descriptors of all ranks, which all take this path.
    SymmetricOperation(Communicator& communicator, const Operation& operation,
                       const std::vector<Descriptor>& all)
        : communicator_(communicator), operation_(operation), all_(all) {}

    struct Fault {
        Rule rule; // that was broken
        std::string reason;
    };
    // Why the kernels would access memory that is not there, if so. The same on all ranks.
    std::optional<Fault> illegal_access() const;

    // Reads all that this rank's memory is going to hold. False if a rank is gone.
    bool read();
    // To be called when all ranks have read. False if this rank's memory is gone.
    bool write() const;

  private:
    struct Store {
        std::byte* at;
        std::size_t size;
        std::unique_ptr<std::byte[]> bytes;
    };

    std::optional<Fault> beyond(const Spot& spot, std::size_t size) const;
    std::byte* own(const Spot& spot, std::size_t offset) const;
    bool fold(const Spot& spot, std::size_t offset, std::size_t count, std::byte* at);

    Communicator& communicator_;
    const Operation& operation_;
    const std::vector<Descriptor>& all_;
    std::vector<Store> stores_;
};

} // namespace tracehook::rehearsal::nccl
