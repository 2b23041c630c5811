// Copies on their way into shared memory, and the mbarriers they arrive at.
#pragma once
#include <cstddef>
#include <cstdint>

namespace csim {

// cp.async: the queue of the running thread, and how many copies it has issued since it began.
uint64_t copies_of_this_thread(uint64_t& issued);
void land_copies(uint64_t queue, uint64_t through);   // the first `through` of them are there
// A bulk copy, there as soon as somebody looks at the mbarrier.
void arrive_when_landed(void* mbarrier, char* target, const unsigned char* bytes, size_t n, const char* name, void* pc);

}  // namespace csim
