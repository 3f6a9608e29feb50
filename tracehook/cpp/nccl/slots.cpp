#include "nccl/slots.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <elf.h>
#include <link.h>
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

void write_slot(const Object& object, std::uintptr_t slot, void* function) {
    const bool read_only = slot >= object.relro_begin && slot < object.relro_end;
    const auto page_size = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    void* page = reinterpret_cast<void*>(slot & ~(page_size - 1));
    if (read_only && mprotect(page, page_size, PROT_READ | PROT_WRITE) != 0) {
        return;
    }
    std::atomic_ref<void*>(*reinterpret_cast<void**>(slot))
        .store(function, std::memory_order_release);
    if (read_only) {
        mprotect(page, page_size, PROT_READ);
    }
}

struct Search {
    std::string_view library;
    std::span<const Replacement> replacements;
    std::vector<bool> found;
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
                    write_slot(object, object.base + relocation.r_offset,
                               search.replacements[i].function);
                    search.found[i] = true;
                }
            }
        }
    }
    return 0;
}

} // namespace

std::vector<std::string> rewrite_slots(std::string_view library,
                                       std::span<const Replacement> replacements) {
    Search search{library, replacements, std::vector<bool>(replacements.size(), false)};
    dl_iterate_phdr(visit, &search);
    std::vector<std::string> found;
    for (std::size_t i = 0; i < replacements.size(); ++i) {
        if (search.found[i]) {
            found.emplace_back(replacements[i].symbol);
        }
    }
    return found;
}

} // namespace tracehook::nccl
