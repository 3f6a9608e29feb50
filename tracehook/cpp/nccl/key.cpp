#include "nccl/key.h"

#include <cstring>
#include <unistd.h>

namespace tracehook::nccl {

namespace {

// FNV-1a over the bytes, then one round of mixing so that near-equal inputs differ in every digit.
class Hash {
  public:
    Hash& bytes(const void* data, std::size_t size) noexcept {
        const auto* byte = static_cast<const unsigned char*>(data);
        for (std::size_t i = 0; i < size; ++i) {
            state_ = (state_ ^ byte[i]) * 0x100000001b3ULL;
        }
        return *this;
    }
    template <typename Number> Hash& number(Number value) noexcept {
        return bytes(&value, sizeof(value));
    }
    std::uint64_t value() const noexcept {
        std::uint64_t x = state_;
        x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdULL;
        x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ULL;
        return x ^ (x >> 33);
    }

  private:
    std::uint64_t state_ = 0xcbf29ce484222325ULL;
};

} // namespace

std::uint64_t key_of_unique_ids(std::span<const UniqueId> ids) noexcept {
    return Hash().bytes(ids.data(), ids.size_bytes()).value();
}

std::uint64_t key_of_child(std::uint64_t parent, std::string_view kind, std::int64_t colour,
                           std::uint64_t count) noexcept {
    return Hash()
        .number(parent)
        .bytes(kind.data(), kind.size())
        .number(colour)
        .number(count)
        .value();
}

std::uint64_t key_of_name(std::string_view name) noexcept {
    return Hash().bytes(name.data(), name.size()).value();
}

std::uint64_t key_of_own_devices(int count, std::uint64_t number) noexcept {
    char host[256] = {};
    gethostname(host, sizeof host - 1);
    const std::uint64_t process = Hash().bytes(host, std::strlen(host)).number(getpid()).value();
    return key_of_child(process, "all", count, number);
}

} // namespace tracehook::nccl
