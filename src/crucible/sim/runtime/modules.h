// Loaded modules: where their code, globals and __shared__ variables lie, and from which source line an instruction
// came.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "shadow.h"

namespace csim {

struct SharedSymbol {
    size_t offset, size;   // in the module's thread-local storage
    std::string name, function;
};

struct Segment {
    uintptr_t low, high;
    bool writable;
    Cell* words;   // shadow of a writable segment: __device__ variables race too
    Cell* bytes;
};

struct Module {
    std::string path;
    uintptr_t base = 0;
    size_t tls_id = 0;
    std::vector<Segment> segments;
    std::vector<SharedSymbol> shared;             // sorted by offset
    // [from, to) of other thread-local variables: initialisation guards, libraries
    std::vector<std::pair<size_t, size_t>> others;
    size_t shared_low = 0, shared_high = 0;       // the range of TLS offsets they span
    Cell* words = nullptr;                        // shadow of that range
    Cell* bytes = nullptr;

    uintptr_t shared_address() const;             // of shared_low, in the calling host thread
    void poison_shared(uintptr_t low, int byte) const;
    const SharedSymbol* symbol_at(size_t offset) const;    // null: between two arrays
    const SharedSymbol* symbol_before(size_t offset) const;
    bool other_thread_local(size_t offset) const;

    static Module* of(const void* address);       // the module that holds this code or data; null if none
};

// Inside any loaded object's mapped segments? Fills in the segment if the object is a Module that has been launched
// from.
enum class HostMemory { none, object, data_of_module };
HostMemory classify(uintptr_t address, Segment** segment);

struct SourceLine {
    std::string file, function;
    int line = 0;
};
// The innermost frame outside the simulator's and the system's headers.
SourceLine source_line(const void* pc);
std::string read_source(const std::string& file, int line);   // trimmed, empty if unreadable

}  // namespace csim
