// Names for addresses in reports: the tensor (from the launch's argument text) or the shared array an address belongs
// to.
#pragma once
#include <cstdint>
#include <string>

#include "arena.h"

namespace csim {

struct Named {
    std::string tensor;   // "x", or empty
    std::string text;     // "`x` (byte 12 of 4096)", "shared array `tile` (byte 64)"
};
Named name_of(uintptr_t address);
Named name_of(const Allocation& a);                    // text without a position: "`x`"
// The tensor an out-of-bounds address most likely belongs to: the nearest one, arguments of this launch first.
Allocation* owner_of(uintptr_t address);
// The argument that is this host address or points just before it, as written at the launch; empty if none.
std::string host_argument(uintptr_t address);
bool is_argument(const Allocation& a);   // does an argument of this launch point into it?
std::string short_name(const std::string& argument);   // "x.data_ptr<float>()" -> "x"

}  // namespace csim
