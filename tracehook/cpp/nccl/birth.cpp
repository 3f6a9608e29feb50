#include "nccl/birth.h"

#include "nccl/registration_calls.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace tracehook::nccl {

namespace {

BirthObserver& observer() {
    static auto* const instance =
        new BirthObserver; // never destroyed: threads may still make communicators at exit
    return *instance;
}

std::atomic<int> ranks_of_host{0};
std::atomic<bool> registers_all{true};

// `size`: -1 if it is not known yet.
bool on_one_host(int size) noexcept {
    const int most = ranks_of_host.load(std::memory_order_relaxed);
    return size < 0 ? most > 0 : size <= std::max(most, 1);
}

template <typename Field> bool knows(const Config* config, Field Config::* field) noexcept {
    const auto* end = reinterpret_cast<const char*>(&(config->*field)) + sizeof(Field);
    return static_cast<std::size_t>(end - reinterpret_cast<const char*>(config)) <= config->size;
}

void override_by(const char* name, bool& choice) noexcept {
    if (const char* variable = std::getenv(name)) {
        choice = std::strcmp(variable, "1") == 0;
    }
}

} // namespace

bool config_blocking(const Config* config) noexcept {
    return config == nullptr || !knows(config, &Config::blocking) || config->blocking != 0;
}

registrar::Sharing config_sharing(const Config* config,
                                  const registrar::CommunicatorPtr& parent) noexcept {
    registrar::Sharing sharing;
    if (config != nullptr) {
        sharing.splits = knows(config, &Config::split_share) && config->split_share == 1;
        sharing.shrinks = knows(config, &Config::shrink_share) && config->shrink_share == 1;
    } else if (parent) {
        sharing = parent->identity().shares;
    }
    // NCCL's own variables come before the configuration.
    override_by("NCCL_COMM_SPLIT_SHARE_RESOURCES", sharing.splits);
    override_by("NCCL_COMM_SHRINK_SHARE_RESOURCES", sharing.shrinks);
    return sharing;
}

void set_birth_observer(BirthObserver observe) {
    observer() = std::move(observe);
}

void set_host(int most_ranks, bool every_segment) noexcept {
    ranks_of_host.store(most_ranks, std::memory_order_relaxed);
    registers_all.store(every_segment, std::memory_order_relaxed);
}

void deliver(registrar::Registrar& registrar, const Birth& birth) {
    registrar::Identity identity;
    identity.pointer = birth.handle;
    identity.key = birth.key;
    identity.device = birth.device;
    identity.rank = birth.rank;
    identity.size = birth.size;
    identity.local = birth.local;
    identity.adopted = birth.adopted;
    identity.shares = birth.shares;
    // A child's rank is NCCL's to say; it may be asked once the communicator is ready, so not while
    // it is in progress.
    if (identity.rank < 0 && birth.blocking) {
        api().ncclCommUserRank(identity.pointer, &identity.rank);
        api().ncclCommCount(identity.pointer, &identity.size);
    }
    identity.when = registers_all.load(std::memory_order_relaxed) ? registrar::When::kAtBirth
                                                                  : registrar::When::kAtCalls;
    identity.one_host = on_one_host(identity.size);
    registrar.add(
        identity,
        [&](const registrar::Identity& own) {
            return std::make_unique<NcclRegistrationCalls>(own.pointer, own.device, birth.blocking,
                                                           own.one_host);
        },
        birth.shares_resources ? birth.parent : nullptr);
    if (observer()) {
        observer()();
    }
}

BirthsInProgress& BirthsInProgress::instance() noexcept {
    static auto* const all = new BirthsInProgress; // as above
    return *all;
}

void BirthsInProgress::expect(const void* owner, Birth birth) {
    const std::lock_guard guard(mutex_);
    births_.push_back({owner, std::move(birth)});
    count_.store(births_.size(), std::memory_order_release);
}

void BirthsInProgress::deliver_all(const void* owner, registrar::Registrar& registrar) {
    std::vector<Birth> made;
    drop_if([&](Expected& expected) {
        if (expected.owner != owner || !expected.birth.has_handle()) {
            return false;
        }
        made.push_back(expected.birth);
        return true;
    });
    for (const Birth& birth : made) {
        deliver(registrar, birth);
    }
}

void BirthsInProgress::drop(Comm communicator) noexcept {
    drop_if([&](Expected& expected) { return expected.birth.is_of(communicator); });
}

void BirthsInProgress::drop_all_of(const void* owner) noexcept {
    drop_if([&](const Expected& expected) { return expected.owner == owner; });
}

template <typename Which> void BirthsInProgress::drop_if(const Which& which) noexcept {
    if (count_.load(std::memory_order_acquire) == 0) {
        return;
    }
    const std::lock_guard guard(mutex_);
    std::erase_if(births_, which);
    count_.store(births_.size(), std::memory_order_release);
}

} // namespace tracehook::nccl
