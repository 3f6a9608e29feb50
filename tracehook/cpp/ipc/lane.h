// The shortest message between two processes, "the same tensors as last time": a number in memory
// that both have, without a system call, or a packet on their socket.
//
// The packets are those of tracehook/ipc/wire.py, which has all other messages. Each process writes
// to a page of its own, and reads the other's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tracehook::ipc {

// What the next packet of a socket was. If it was another message, that has been taken too: its
// bytes, and the descriptors that came beside it, which are the caller's to close.
struct Taken {
    bool is_same = false;
    std::vector<char> other;
    std::vector<int> files;
};

// Of one process, to one peer. Any thread may say and ask; nothing is locked, and nothing but
// `take` waits. A forked child may destroy it, and do no more.
class Lane {
  public:
    // `socket` leads to the same peer, and stays the caller's. Throws std::system_error if the
    // system gives no memory.
    explicit Lane(int socket);
    ~Lane();
    Lane(const Lane&) = delete;
    Lane& operator=(const Lane&) = delete;

    // The descriptor of this process's page, once: the caller's from now on.
    int hand_over() noexcept;

    // Maps the peer's page. False if the descriptor is of no such page; it stays the caller's.
    bool meet(int file) noexcept;
    // Whether each has the other's page.
    bool is_met() const noexcept;

    // Lets the peer know that the exchange of this number is as the one before, and wakes it by a
    // packet if it rests. Only if is_met(). False if that packet is owed: the system has no memory
    // for it.
    bool say(std::uint64_t number) noexcept;

    // The last number that the peer said; 0 if none.
    std::uint64_t heard() const noexcept;

    // Whether the peer says this number within `microseconds`: it need not be woken then.
    bool wait_for(std::uint64_t number, unsigned microseconds) const noexcept;

    // What it says from now on comes with a packet too, until this is over.
    void rest(bool begins) noexcept;

    // The same over the socket. Whether it went out; if not, nothing was sent: the system's buffer
    // is full, or the peer is gone.
    bool send(std::uint64_t number) const noexcept;

    // Waits some microseconds for the next packet; one reader of a socket at a time. `most` is the
    // size of the largest message.
    Taken take(std::uint64_t number, std::size_t most) const;

  private:
    struct Page;

    const int socket_;
    int file_ = -1;
    Page* ours_ = nullptr;
    const Page* theirs_ = nullptr;
};

} // namespace tracehook::ipc
