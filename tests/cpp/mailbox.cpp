// Three ranks, a thread each, meet at a mailbox for many rounds; at times one stays away, or comes
// late. A text is whole or absent, is of the round that was wanted, and a round in which all came
// has all texts. Argument: how many rounds.
//
// Each rank maps the file for itself, as processes do, so ThreadSanitizer sees no two of them at
// one address: it looks at what the threads share besides, AddressSanitizer at the lengths.
#include "symmetric_memory/host_mailbox.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

using namespace std::chrono_literals;
using tracehook::core::HostMailbox;

constexpr std::size_t kRanks = 3;
constexpr auto kShort = 200us; // of who may wait in vain
constexpr auto kLong = 20s;

std::atomic<std::uint64_t> gathered{0};
std::atomic<std::uint64_t> shown{0};

void expect(bool holds, const char* what, std::uint64_t round) {
    if (!holds) {
        std::fprintf(stderr, "mailbox: round %lu: not true: %s\n", round, what);
        std::abort();
    }
}

// Its length and every character depend on who writes it, and when.
std::string text_of(std::size_t rank, std::uint64_t round) {
    const std::size_t length = (round * 7919 + rank * 104729) % (HostMailbox::kLongest + 1);
    return std::string(length, static_cast<char>('a' + (round + rank) % 26));
}

bool everybody_comes(std::uint64_t round) {
    return round % 4 != 0;
}

void gather(HostMailbox& mailbox, std::uint64_t round) {
    const auto texts = mailbox.gather(round, everybody_comes(round) ? kLong : kShort);
    if (texts.empty()) {
        expect(!everybody_comes(round), "the texts of all who came are there", round);
        return;
    }
    expect(texts.size() == kRanks, "a text of each rank", round);
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
        expect(texts[rank] == text_of(rank, round), "what this rank posted in this round", round);
    }
    gathered.fetch_add(1);
    mailbox.publish(round, text_of(kRanks, round));
}

void look(HostMailbox& mailbox, std::uint64_t round) {
    const auto text = mailbox.published(round, everybody_comes(round) ? kLong : kShort);
    if (text) {
        expect(*text == text_of(kRanks, round), "what was published in this round", round);
        shown.fetch_add(1);
    }
}

void play(const std::string& path, std::size_t rank, std::uint64_t rounds,
          std::atomic<std::uint64_t>& level) {
    HostMailbox mailbox(path, kRanks, rank);
    while (!mailbox.is_complete()) {
        std::this_thread::yield();
    }
    std::minstd_rand chance(static_cast<unsigned>(rank + 1));
    for (std::uint64_t round = 1; round <= rounds; ++round) {
        if (everybody_comes(round)) { // the round before is over for everybody
            level.fetch_add(1);
            while (level.load() < round * kRanks) {
                std::this_thread::yield();
            }
        } else {
            level.fetch_add(1);
            if (chance() % 3 == 0) {
                continue;
            }
        }
        mailbox.post(round, text_of(rank, round));
        rank == 0 ? gather(mailbox, round) : look(mailbox, round);
    }
}

} // namespace

int main(int count, char** arguments) {
    const std::uint64_t rounds = count > 1 ? std::strtoull(arguments[1], nullptr, 10) : 2000;
    const std::string path = "/dev/shm/tracehook-test-" + std::to_string(getpid());
    std::atomic<std::uint64_t> level{0};
    std::vector<std::thread> ranks;
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
        ranks.emplace_back([&, rank] { play(path, rank, rounds, level); });
    }
    for (std::thread& rank : ranks) {
        rank.join();
    }
    expect(access(path.c_str(), F_OK) != 0, "the file has lost its name", rounds);
    std::printf(
        "mailbox: %lu rounds, all texts gathered in %lu, %lu looks found what was published\n",
        rounds, gathered.load(), shown.load());
}
