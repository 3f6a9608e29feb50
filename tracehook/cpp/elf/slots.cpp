#include "elf/slots.h"

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

namespace tracehook::elf {

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

struct Tables {
    const Elf64_Sym* symbols = nullptr;
    std::size_t imports = 0; // symbols that others define, from number 1; 0: not known
    const char* names = nullptr;
    std::span<const Elf64_Rela> plt;
    std::span<const Elf64_Rela> data;
    std::uintptr_t relro_begin = 0; // of whole pages, as the dynamic linker protects them
    std::uintptr_t relro_end = 0;
};

std::uintptr_t page_of(std::uintptr_t address) noexcept {
    return address & ~(static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE)) - 1);
}

Tables read_tables(const dl_phdr_info& info, LoadedObject& object) {
    Tables tables;
    object.path = info.dlpi_name != nullptr ? info.dlpi_name : "";
    object.base = object.begin = object.end = info.dlpi_addr;
    const Elf64_Dyn* dynamic = nullptr;
    for (int i = 0; i < info.dlpi_phnum; ++i) {
        const Elf64_Phdr& header = info.dlpi_phdr[i];
        if (header.p_type == PT_DYNAMIC) {
            dynamic = reinterpret_cast<const Elf64_Dyn*>(object.base + header.p_vaddr);
        } else if (header.p_type == PT_GNU_RELRO) {
            // A linker that took the machine's pages for smaller lets the part end inside a page,
            // and the object's data follow there: that page stays writable.
            const std::uintptr_t begin = object.base + header.p_vaddr;
            tables.relro_begin = page_of(begin);
            tables.relro_end = page_of(begin + header.p_memsz);
        } else if (header.p_type == PT_LOAD) {
            object.end = std::max(object.end, object.base + header.p_vaddr + header.p_memsz);
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
    std::size_t relative = 0; // of `data`: they come first, name nothing, and are most of it
    for (; dynamic != nullptr && dynamic->d_tag != DT_NULL; ++dynamic) {
        const std::uintptr_t value = dynamic->d_un.d_ptr;
        switch (dynamic->d_tag) {
        case DT_SYMTAB:
            tables.symbols = reinterpret_cast<const Elf64_Sym*>(pointer(value));
            break;
        case DT_STRTAB:
            tables.names = reinterpret_cast<const char*>(pointer(value));
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
        case DT_RELACOUNT:
            relative = value;
            break;
        case DT_GNU_HASH:
            // Its second word is the number of the first symbol that the object itself defines.
            tables.imports = reinterpret_cast<const std::uint32_t*>(pointer(value))[1];
            break;
        default:
            break;
        }
    }
    tables.plt = {plt, plt != nullptr ? plt_bytes / sizeof(Elf64_Rela) : 0};
    if (data != nullptr) {
        const std::span all(data, data_bytes / sizeof(Elf64_Rela));
        tables.data = all.subspan(std::min(relative, all.size()));
    }
    return tables;
}

struct Search {
    std::span<const Replacement> replacements;
    const Choice& choice;
    std::vector<LoadedObject> objects;
};

bool is_named(const Tables& tables, std::size_t symbol, const char* wanted) noexcept {
    const char* const name = tables.names + tables.symbols[symbol].st_name;
    return name[0] == wanted[0] && std::strcmp(name, wanted) == 0; // most differ at once
}

// Saves most objects the way through all their relocations.
bool imports_any(const Tables& tables, std::span<const Replacement> wanted) noexcept {
    constexpr std::size_t kUnknown = 1; // also what some linkers say of an object without exports
    if (tables.imports <= kUnknown) {
        return !wanted.empty();
    }
    for (std::size_t symbol = 1; symbol < tables.imports; ++symbol) {
        for (const Replacement& each : wanted) {
            if (is_named(tables, symbol, each.symbol)) {
                return true;
            }
        }
    }
    return false;
}

int visit(dl_phdr_info* info, std::size_t, void* user) {
    auto& search = *static_cast<Search*>(user);
    LoadedObject object;
    const Tables tables = read_tables(*info, object);
    if (tables.symbols == nullptr || tables.names == nullptr) {
        return 0;
    }
    const auto wanted = search.replacements.first(search.choice(object));
    const bool imports = imports_any(tables, wanted);
    for (const auto table : {tables.plt, tables.data}) {
        for (const Elf64_Rela& relocation : imports ? table : table.first(0)) {
            const auto type = static_cast<std::uint32_t>(ELF64_R_TYPE(relocation.r_info));
            if (type != kJumpSlot && type != kGlobDat) {
                continue;
            }
            for (std::size_t i = 0; i < wanted.size(); ++i) {
                if (is_named(tables, ELF64_R_SYM(relocation.r_info), wanted[i].symbol)) {
                    const std::uintptr_t address = object.base + relocation.r_offset;
                    object.slots.push_back(
                        {address, i, address >= tables.relro_begin && address < tables.relro_end});
                }
            }
        }
    }
    search.objects.push_back(std::move(object));
    return 0;
}

std::atomic_ref<void*> value_of(const Slot& slot) noexcept {
    return std::atomic_ref<void*>(*reinterpret_cast<void**>(slot.address));
}

// The pages of the read-only slots, writable as long as this lives.
class Writable {
  public:
    explicit Writable(std::span<const Slot> slots) {
        for (const Slot& slot : slots) {
            const std::uintptr_t page = page_of(slot.address);
            if (!slot.read_only || std::ranges::find(pages_, page) != pages_.end()) {
                continue;
            }
            if (protect(page, PROT_READ | PROT_WRITE) != 0) {
                const std::string why = std::strerror(errno);
                close();
                throw std::runtime_error("a table of calls cannot be written: mprotect: " + why);
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

void* Slot::target() const noexcept {
    return value_of(*this).load(std::memory_order_acquire);
}

LoadCount load_count() noexcept {
    LoadCount count;
    dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t, void* user) {
            *static_cast<LoadCount*>(user) = {info->dlpi_adds, info->dlpi_subs};
            return 1; // the first object tells it
        },
        &count);
    return count;
}

std::vector<LoadedObject> loaded_objects(std::span<const Replacement> replacements,
                                         const Choice& choice) {
    Search search{replacements, choice, {}};
    dl_iterate_phdr(visit, &search);
    return std::move(search.objects);
}

void rewrite(std::span<const Slot> slots, std::span<const Replacement> replacements) {
    const auto is_ours = [&](const Slot& slot) {
        return slot.target() == replacements[slot.replacement].function;
    };
    // The dynamic linker may just be binding a slot for another thread, and write it after us.
    for (int attempt = 0; attempt < kAttempts && !std::ranges::all_of(slots, is_ours); ++attempt) {
        const Writable pages(slots);
        for (const Slot& slot : slots) {
            value_of(slot).store(replacements[slot.replacement].function,
                                 std::memory_order_release);
        }
    }
    for (const Slot& slot : slots) {
        if (!is_ours(slot)) {
            throw std::runtime_error(std::string("something else stands in the slot of ") +
                                     replacements[slot.replacement].symbol +
                                     " after it was written");
        }
    }
}

} // namespace tracehook::elf
