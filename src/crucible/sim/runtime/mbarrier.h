// mbarrier objects: counts of arrivals and of bytes, phases, and the copies that arrive at them.
#pragma once
#include <cstdint>
#include <vector>

namespace csim {

// An asynchronous copy (or all cp.async that a thread has issued so far) on its way to shared memory.
struct Landing {
    char* target = nullptr;               // of a bulk copy
    std::vector<unsigned char> bytes;
    uint64_t queue = 0, through = 0;      // of cp.async: whose, and how many since it began
    std::vector<uint32_t> known;          // what had happened before, for whoever waits
    uint32_t epoch = 0;                   // in which `known` counts
    bool arrives = false;                 // counts as an arrival
};

struct MBarrier {
    uintptr_t address = 0;
    uint32_t expected = 0, pending = 0;   // arrivals of a phase; those still to come
    int64_t bytes = 0;                    // transaction count
    uint64_t phase = 0;
    uint64_t initialised = 0;             // record of the initialisation
    uint64_t word = 0;                    // what lies in shared memory: nobody else may write there
    uint32_t waiting = 0;                 // threads
    std::vector<Landing> landings;        // looked at when somebody tests the barrier
    // what those who have arrived knew: in this phase, and when the last one completed
    std::vector<uint32_t> arriving, completed;
    uint32_t arriving_epoch = 0, completed_epoch = 0;
    uint32_t acquired = 0, fenced = 0;
};

}  // namespace csim
