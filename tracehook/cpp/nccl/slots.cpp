#include "nccl/slots.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <elf.h>
#include <link.h>
#include <stdexcept>
#include <sys/mman.h>
#include <unistd.h>

namespace tracehook::nccl {

namespace {

#if defined(__x86_64__)
constexpr std::uint32_t kJumpSlot = R_X86_64_JUMP_SLOT;
constexpr std::uint32_t kGlobDat = R_X86_64_GLOB_DAT;
#elif defined(__aarch64__)
constexpr std::uint32_t kJumpSlot = R_AARCH64_JUMP_SLOT;
constexpr std::uint32_t kGlobDat = R_AARCH64_GLOB_DAT;
#else
#error "tracehook rewrites ELF slots on x86-64 and aarch64 only"
#endif

constexpr int kAttempts = 3;

struct Object {
    std::uintptr_t base = 0;
    const Elf64_Sym* symbols = nullptr;
    const char* names = nullptr;
    std::span<const Elf64_Rela> plt;
    std::span<const Elf64_Rela> data;
    std::uintptr_t relro_begin = 0;
    std::uintptr_t relro_end = 0;
};

Object read_object(const dl_phdr_info& info) {
    Object object;
    object.base = info.dlpi_addr;
    const Elf64_Dyn* dynamic = nullptr;
    for (int i = 0; i < info.dlpi_phnum; ++i) {
        const Elf64_Phdr& header = info.dlpi_phdr[i];
        if (header.p_type == PT_DYNAMIC) {
            dynamic = reinterpret_cast<const Elf64_Dyn*>(object.base + header.p_vaddr);
        } else if (header.p_type == PT_GNU_RELRO) {
            object.relro_begin = object.base + header.p_vaddr;
            object.relro_end = object.relro_begin + header.p_memsz;
        }
    }
    // glibc relocates these pointers in place on most machines, but not where the section is
    // read-only.
    const auto pointer = [&](std::uintptr_t value) {
        return value < object.base ? value + object.base : value;
    };
    const Elf64_Rela* plt = nullptr;
    const Elf64_Rela* data = nullptr;
    std::size_t plt_bytes = 0;
    std::size_t data_bytes = 0;
    for (; dynamic != nullptr && dynamic->d_tag != DT_NULL; ++dynamic) {
        const std::uintptr_t value = dynamic->d_un.d_ptr;
        switch (dynamic->d_tag) {
        case DT_SYMTAB:
            object.symbols = reinterpret_cast<const Elf64_Sym*>(pointer(value));
            break;
        case DT_STRTAB:
            object.names = reinterpret_cast<const char*>(pointer(value));
            break;
        case DT_JMPREL:
            plt = reinterpret_cast<const Elf64_Rela*>(pointer(value));
            break;
        case DT_PLTRELSZ:
            plt_bytes = value;
            break;
        case DT_RELA:
            data = reinterpret_cast<const Elf64_Rela*>(pointer(value));
            break;
        case DT_RELASZ:
            data_bytes = value;
            break;
        default:
            break;
        }
    }
    object.plt = {plt, plt != nullptr ? plt_bytes / sizeof(Elf64_Rela) : 0};
    object.data = {data, data != nullptr ? data_bytes / sizeof(Elf64_Rela) : 0};
    return object;
}

// A slot of a loaded library, and what is to stand in it.
struct Place {
    std::uintptr_t slot;
    std::size_t replacement;
    bool read_only;
};

struct Search {
    std::string_view library;
    std::span<const Replacement> replacements;
    std::vector<Place> places;
};

int visit(dl_phdr_info* info, std::size_t, void* user) {
    auto& search = *static_cast<Search*>(user);
    const std::string_view path = info->dlpi_name != nullptr ? info->dlpi_name : "";
    if (!path.substr(path.rfind('/') + 1).starts_with(search.library)) {
        return 0;
    }
    const Object object = read_object(*info);
    if (object.symbols == nullptr || object.names == nullptr) {
        return 0;
    }
    for (const auto table : {object.plt, object.data}) {
        for (const Elf64_Rela& relocation : table) {
            const auto type = static_cast<std::uint32_t>(ELF64_R_TYPE(relocation.r_info));
            if (type != kJumpSlot && type != kGlobDat) {
                continue;
            }
            const char* name =
                object.names + object.symbols[ELF64_R_SYM(relocation.r_info)].st_name;
            if (std::strncmp(name, "nccl", 4) != 0) {
                continue;
            }
            for (std::size_t i = 0; i < search.replacements.size(); ++i) {
                if (std::strcmp(name, search.replacements[i].symbol) == 0) {
                    const std::uintptr_t slot = object.base + relocation.r_offset;
                    search.places.push_back(
                        {slot, i, slot >= object.relro_begin && slot < object.relro_end});
                }
            }
        }
    }
    return 0;
}

std::atomic_ref<void*> value_of(const Place& place) {
    return std::atomic_ref<void*>(*reinterpret_cast<void**>(place.slot));
}

// The pages of the read-only slots, writable as long as this lives.
class Writable {
  public:
    explicit Writable(std::span<const Place> places) {
        const auto bytes = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
        for (const Place& place : places) {
            const std::uintptr_t page = place.slot & ~(bytes - 1);
            if (!place.read_only || std::ranges::find(pages_, page) != pages_.end()) {
                continue;
            }
            if (protect(page, PROT_READ | PROT_WRITE) != 0) {
                const std::string why = std::strerror(errno);
                close();
                throw std::runtime_error(
                    "a table of calls into NCCL cannot be written: mprotect: " + why);
            }
            pages_.push_back(page);
        }
    }
    ~Writable() { close(); }
    Writable(const Writable&) = delete;
    Writable& operator=(const Writable&) = delete;

  private:
    static int protect(std::uintptr_t page, int protection) noexcept {
        return mprotect(reinterpret_cast<void*>(page),
                        static_cast<std::size_t>(sysconf(_SC_PAGESIZE)), protection);
    }
    void close() noexcept {
        for (const std::uintptr_t page : pages_) {
            protect(page, PROT_READ);
        }
    }

    std::vector<std::uintptr_t> pages_;
};

} // namespace

std::vector<std::string> rewrite_slots(std::string_view library,
                                       std::span<const Replacement> replacements) {
    Search search{library, replacements, {}};
    dl_iterate_phdr(visit, &search);
    const auto is_ours = [&](const Place& place) {
        return value_of(place).load(std::memory_order_acquire) ==
               replacements[place.replacement].function;
    };
    // The dynamic linker may just be binding a slot for another thread, and write it after us.
    for (int attempt = 0; attempt < kAttempts && !std::ranges::all_of(search.places, is_ours);
         ++attempt) {
        const Writable pages(search.places);
        for (const Place& place : search.places) {
            value_of(place).store(replacements[place.replacement].function,
                                  std::memory_order_release);
        }
    }
    std::vector<bool> found(replacements.size(), false);
    for (const Place& place : search.places) {
        if (!is_ours(place)) {
            throw std::runtime_error(std::string("something else stands in the slot of ") +
                                     replacements[place.replacement].symbol +
                                     " after it was written");
        }
        found[place.replacement] = true;
    }
    std::vector<std::string> names;
    for (std::size_t i = 0; i < replacements.size(); ++i) {
        if (found[i]) {
            names.emplace_back(replacements[i].symbol);
        }
    }
    return names;
}

} // namespace tracehook::nccl
