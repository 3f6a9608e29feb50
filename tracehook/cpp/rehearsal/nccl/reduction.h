// What NCCL's reductions compute, element by element, for every data type.
//
// Values of 16 bits and less are added up as float and rounded once at the end; integers wrap
// around. No state, any thread.
#pragma once

#include "names.h"

#include <cstddef>

namespace tracehook::rehearsal::nccl {

// Bytes of one element; 0 if there is no such type.
std::size_t element_size(DataType type);
const char* type_name(DataType type);
// By name; everything from kNumOps up is "premulsum".
const char* operator_name(int op);

// Adds elements of one rank after another to wide values, then writes them as elements again.
class Reduction {
  public:
    Reduction(DataType type, int op, int ranks);

    // Bytes of one wide value.
    static constexpr std::size_t kWide = 8;

    // wide[i] = wide[i] op elements[i], or elements[i] alone if `first`. `scalar`, one element,
    // multiplies each; null for none.
    void fold(void* wide, const void* elements, std::size_t count, bool first,
              const void* scalar) const;
    void store(void* elements, const void* wide, std::size_t count) const;

  private:
    DataType type_;
    int op_;
    int ranks_;
};

} // namespace tracehook::rehearsal::nccl
