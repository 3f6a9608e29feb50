#include "torch/hook_library.h"

#include <cstdint>
#include <dlfcn.h>
#include <stdexcept>

namespace tracehook::torch {

namespace {

std::string minor_of(const std::string& version) {
    return version.substr(0, version.find('.', version.find('.') + 1));
}

template <typename Call> void checked(const char* what, Call&& call) {
    char error[512] = "";
    if (call(error, static_cast<std::uint32_t>(sizeof(error))) != 0) {
        throw std::runtime_error(std::string(what) + ": " + error);
    }
}

} // namespace

HookLibrary::HookLibrary(const std::string& path, const std::string& torch_version) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        throw std::runtime_error(std::string("the hook library cannot be loaded: ") + dlerror());
    }
    const auto get_api =
        reinterpret_cast<const th_hook_api* (*)()>(dlsym(library, "th_hook_get_api"));
    if (get_api == nullptr) {
        throw std::runtime_error(path +
                                 " is not a tracehook hook library: it has no th_hook_get_api");
    }
    api_ = get_api();
    if (api_ == nullptr) {
        throw std::runtime_error(path + " is not a tracehook hook library: its table is empty");
    }
    if (api_->struct_size < sizeof(th_hook_api)) {
        throw std::runtime_error(path + " is from another tracehook: its table has " +
                                 std::to_string(api_->struct_size) + " bytes, expected " +
                                 std::to_string(sizeof(th_hook_api)));
    }
    // Checked before any other call: with another minor's classes, the first one would land in a
    // foreign function.
    const std::string built_for = api_->torch_version != nullptr ? api_->torch_version : "?";
    if (minor_of(built_for) != minor_of(torch_version)) {
        throw std::runtime_error(path + " was built for torch " + built_for +
                                 ", but this is torch " + torch_version);
    }
}

th_allocator_info HookLibrary::describe() const {
    th_allocator_info info{};
    info.struct_size = sizeof(info);
    checked("reading the allocator's settings failed",
            [&](char* error, std::uint32_t size) { return api_->describe(&info, error, size); });
    return info;
}

void HookLibrary::attach(th_segment_callback callback, void* user) const {
    checked("attaching to the allocator failed", [&](char* error, std::uint32_t size) {
        return api_->attach(callback, user, error, size);
    });
}

std::vector<th_segment_event> HookLibrary::snapshot() const {
    std::vector<th_segment_event> segments;
    const auto collect = [](void* user, const th_segment_event* event) {
        static_cast<std::vector<th_segment_event>*>(user)->push_back(*event);
    };
    checked("the allocator's snapshot failed", [&](char* error, std::uint32_t size) {
        return api_->snapshot(collect, &segments, error, size);
    });
    return segments;
}

void HookLibrary::watch_blocks(const std::atomic<std::int32_t>& scopes) const {
    static_assert(sizeof(scopes) == sizeof(std::int32_t));
    api_->watch_blocks(reinterpret_cast<const std::int32_t*>(&scopes));
}

void HookLibrary::watch_frees(const std::array<std::atomic<std::uint64_t>, 2>& span) const {
    static_assert(sizeof(span) == 2 * sizeof(std::uint64_t));
    api_->watch_frees(reinterpret_cast<const std::uint64_t*>(span.data()));
}

void HookLibrary::begin_pool(int device, const std::uint64_t pool[2], int32_t (*mine)(void* user),
                             void* user) const {
    checked("directing allocations to a pool failed", [&](char* error, std::uint32_t size) {
        return api_->begin_pool(device, pool, mine, user, error, size);
    });
}

void HookLibrary::end_pool(int device, const std::uint64_t pool[2]) const {
    checked("ending a pool's allocations failed", [&](char* error, std::uint32_t size) {
        return api_->end_pool(device, pool, error, size);
    });
}

bool HookLibrary::settle(int device) const noexcept {
    char error[1];
    return api_->settle(device, error, sizeof(error)) == 0;
}

void HookLibrary::drop_pool(int device, const std::uint64_t pool[2]) const {
    checked("giving up a pool failed", [&](char* error, std::uint32_t size) {
        return api_->drop_pool(device, pool, error, size);
    });
}

} // namespace tracehook::torch
