// Where the ranks of one group on one host meet: a page of shared memory on which each rank posts
// a text under the number of a round, and one rank, the first of the host, publishes a text for
// all.
//
// It is only a shorter way, and decides nothing. Whoever does not find here what it waits for goes
// to the store, so a rank that dies, comes late or cannot open the file costs time and nothing
// else. A text is whole or absent: its reader sees the number change if the writer goes on
// meanwhile.
//
// The number of a round grows; what comes late for an older one is left out. A text that is too
// long for the page is empty there, which says: look in the store.
//
// Any thread. Calls NCCL, CUDA and Python never. `gather` and `published` wait in the kernel, so
// the caller holds no lock that somebody else needs, and not the GIL.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tracehook::core {

class HostMailbox {
  public:
    static constexpr std::size_t kLongest = 8000; // bytes of a text

    // Opens the file, or creates it; the name must be one that only these ranks know. The file
    // loses its name as soon as all ranks have opened it. Throws std::system_error.
    HostMailbox(std::string path, std::size_t ranks, std::size_t own);
    ~HostMailbox();
    HostMailbox(const HostMailbox&) = delete;
    HostMailbox& operator=(const HostMailbox&) = delete;

    // Whether all ranks have opened it. Until then nobody should wait here.
    bool is_complete() const noexcept;

    // Writes this rank's text of round `number`.
    void post(std::uint64_t number, std::string_view text);

    // The texts of all ranks in round `number`. Waits at most that long. Empty if one is missing:
    // at once if that rank has gone on to a later round. Whoever still waits for what is published
    // in this round then goes to the store as well.
    std::vector<std::string> gather(std::uint64_t number, std::chrono::nanoseconds patience);

    // Writes the text for all. For the rank that gathers.
    void publish(std::uint64_t number, std::string_view text);

    // What was published for round `number`. Waits at most that long; absent at once if the round
    // is over, or if the rank that gathers has given up.
    std::optional<std::string> published(std::uint64_t number,
                                         std::chrono::nanoseconds patience) const;

  private:
    struct Slot;
    struct Page;

    Slot& slot(std::size_t rank) const noexcept;

    const std::string path_;
    const std::size_t ranks_;
    const std::size_t own_;
    Page* page_ = nullptr;
    std::mutex writing_; // one text of this rank at a time
};

} // namespace tracehook::core
