// From a bad access to a finding: which tensor, how far past the end, whose race.
#pragma once
#include <cstddef>
#include <cstdint>

#include "order.h"
#include "report.h"

namespace csim {

std::string thread_of(uint64_t record);   // a thread of the running block, as a report names it
const char* access_verb(unsigned access);
Finding race_finding(uintptr_t address, unsigned access, void* pc, uint64_t other, bool other_wrote, Space space);
Finding uninitialised_finding(uintptr_t address, unsigned access, void* pc);
// an address that no kernel may touch
void report_illegal(uintptr_t address, size_t bytes, unsigned access, void* pc);
// outside the kernel's static shared arrays
void report_shared_overrun(uintptr_t address, size_t bytes, unsigned access, void* pc);
void remember_target(void* pc, uintptr_t allocation);   // this instruction touches this tensor when it is right

}  // namespace csim
