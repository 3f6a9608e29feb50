// The shortest message between two processes, "the same tensors as last time": a number in memory
// that both have, without a system call, or a packet on their socket.
//
// Each process writes to a page of its own, and reads the other's. The packet is a message head.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tracehook::ipc {

// The next packet of a socket. If it was another message than the expected one: its bytes, and the
// descriptors that came beside it, which are the caller's to close.
struct Packet {
    bool is_same = false;
    std::vector<char> other;
    std::vector<int> files;
};

// Of one process, to one peer. Any thread may write and read; nothing is locked, and only
// `wait_for` and `receive_packet` wait. A forked child may destroy it, and do no more.
class SharedPage {
  public:
    // `socket` leads to the same peer, and stays the caller's. `kind` is that of the packets.
    // Throws std::system_error if the system gives no memory.
    SharedPage(int socket, std::uint8_t kind);
    ~SharedPage();
    SharedPage(const SharedPage&) = delete;
    SharedPage& operator=(const SharedPage&) = delete;

    // The descriptor of this process's page, once: the caller's from now on.
    int take_file() noexcept;

    // Maps the peer's page. False if the descriptor is of no such page; it stays the caller's.
    bool map_peer(int file) noexcept;
    // Whether each process has mapped the other's page.
    bool is_mapped_by_both() const noexcept;

    // Writes the number of an exchange that is as the one before, and wakes the peer by a packet if
    // it sleeps. Only if is_mapped_by_both(). False if that packet is owed: the system has no
    // memory for it.
    bool write(std::uint64_t number) noexcept;

    // The last number that the peer wrote; 0 if none.
    std::uint64_t peer_number() const noexcept;

    // Whether the peer writes this number within `microseconds`: it need not be woken then.
    bool wait_for(std::uint64_t number, unsigned microseconds) const noexcept;

    // While set, the peer sends a packet with each number that it writes.
    void set_sleeping(bool sleeps) noexcept;

    // The same over the socket. Whether it went out; if not, nothing was sent: the system's buffer
    // is full, or the peer is gone.
    bool send_packet(std::uint64_t number) const noexcept;

    // Waits some microseconds for the next packet; one reader of a socket at a time. `most` is the
    // size of the largest message.
    Packet receive_packet(std::uint64_t number, std::size_t most) const;

  private:
    struct Page;

    const int socket_;
    const std::uint8_t kind_;
    int file_ = -1;
    Page* own_ = nullptr;
    const Page* peer_ = nullptr;
};

} // namespace tracehook::ipc
