#include "peer_memory.h"

#include <algorithm>
#include <cstdio>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>

namespace tracehook::rehearsal::nccl {

namespace {

constexpr std::size_t kMost = 1U << 30; // one system call moves less than 2 GiB

} // namespace

Publication::Publication(const void* pointer, std::size_t size) {
    range_ = {getpid(), -1, 0, size};
    if (size == 0) {
        return;
    }
    if (emu_unwritten_fill(pointer, size) == 0) {
        list_holes(pointer, size);
    }
    int file = -1;
    const bool whole = emu_memory_find(pointer, size, nullptr, nullptr, nullptr) != 0;
    if (whole && emu_memory_export(pointer, &file, &range_.offset) != 0) {
        range_.file = file;
        return;
    }
    valid_ = copy(pointer, size);
}

Publication::~Publication() {
    if (copy_ >= 0) {
        close(copy_);
    }
}

bool Publication::copy(const void* pointer, std::size_t size) {
    copy_ = memfd_create("tracehook-copy", MFD_CLOEXEC);
    range_.file = copy_;
    range_.offset = 0;
    // write() answers for memory that is not mapped, where a copy in this process would crash.
    for (std::size_t done = 0; done < size;) {
        const auto* from = static_cast<const std::byte*>(pointer) + done;
        const ssize_t written = write(copy_, from, std::min(size - done, kMost));
        if (written <= 0) {
            return false;
        }
        done += static_cast<std::size_t>(written);
    }
    return true;
}

void Publication::list_holes(const void* pointer, std::size_t size) {
    std::vector<emu_hole> holes(emu_unwritten_list(pointer, size, nullptr, 0));
    emu_unwritten_list(pointer, size, holes.data(), holes.size());
    holes_ = std::make_unique<Publication>(holes.data(), holes.size() * sizeof(emu_hole));
}

Holes::Holes(const SharedRange& list) : all_(list.bytes / sizeof(emu_hole)) {
    if (!all_.empty() && !PeerMemory(list).read(0, all_.data(), list.bytes)) {
        all_.clear(); // the rank is gone, as who reads its memory sees
    }
}

void Holes::put(std::size_t offset, std::byte* out, std::size_t size) const {
    for (const emu_hole& hole : all_) {
        const std::size_t begin = std::max<std::size_t>(hole.offset, offset);
        const std::size_t end = std::min<std::size_t>(hole.offset + hole.size, offset + size);
        if (begin < end) {
            emu_unwritten_put(out + (begin - offset), end - begin, hole.byte);
        }
    }
}

PeerMemory::PeerMemory(const SharedRange& range) : range_(range), file_(-1) {
    if (range.file >= 0) {
        char path[64];
        std::snprintf(path, sizeof path, "/proc/%d/fd/%d", range.process, range.file);
        // If the memory was freed, the number may lead to anything by now: opening must not wait.
        file_ = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    }
}

PeerMemory::PeerMemory(PeerMemory&& other) noexcept
    : range_(other.range_), file_(std::exchange(other.file_, -1)) {}

PeerMemory::~PeerMemory() {
    if (file_ >= 0) {
        close(file_);
    }
}

bool PeerMemory::read(std::size_t offset, void* out, std::size_t size) const {
    if (size > range_.bytes || offset > range_.bytes - size) {
        return false;
    }
    for (std::size_t done = 0; done < size;) {
        auto* to = static_cast<std::byte*>(out) + done;
        const auto from = static_cast<off_t>(range_.offset + offset + done);
        const ssize_t moved = pread(file_, to, std::min(size - done, kMost), from);
        if (moved <= 0) {
            return false;
        }
        done += static_cast<std::size_t>(moved);
    }
    return true;
}

} // namespace tracehook::rehearsal::nccl
