// Happens-before: is an earlier access, as recorded in a shadow cell, ordered with what the running thread does now?
#pragma once
#include <cstdint>

namespace csim {

enum class Space { global, shared, module };   // where an address lies: tensors, shared memory, __device__ variables

bool ordered(uint64_t record, Space space);
bool ordered_for(const struct Thread& t, uint64_t record);   // in shared memory, as another thread sees it
bool own_epoch(uint32_t epoch);        // does this epoch belong to the running block?

// Flags between threads. An atomic or volatile write after __threadfence() publishes what happened before the fence; an
// atomic or volatile access of the same location acquires it.
void publish(uintptr_t address);
void acquire(uintptr_t address);

}  // namespace csim
