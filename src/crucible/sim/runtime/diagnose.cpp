// From a bad access to a finding: which tensor, how far past the end, whose race.
#include "diagnose.h"

#include <sys/uio.h>
#include <unistd.h>

#include <cstring>

#include "bounds.h"
#include "check.h"
#include "modules.h"
#include "names.h"
#include "overflow.h"

namespace csim {
namespace {

// The allocation each instruction last touched: when it goes astray, that is the tensor it meant.
struct Target {
    void* pc;
    uintptr_t base;
};
Target targets[4096];
Target& target_of(void* pc) { return targets[(uintptr_t(pc) ^ uintptr_t(pc) >> 12) % 4096]; }
Allocation* usual_target(void* pc) {
    const Target& t = target_of(pc);
    if (t.pc != pc) return nullptr;
    Allocation* a = arena.find(t.base);
    return a && !a->freed ? a : nullptr;
}

std::string bytes_text(long n) { return format_text("%ld byte%s", n, n == 1 ? "" : "s"); }

}  // namespace

std::string thread_of(uint64_t record) {
    const uint32_t t = first_thread(node_of(record));
    const unsigned* d = launch->info->block;
    return format_text("thread (%u, %u, %u)", t % d[0], t / d[0] % d[1], t / (d[0] * d[1]));
}

namespace {
std::string who_was(uint64_t record, Space space) {
    const uint32_t e = epoch_of(record);
    const uint32_t node = node_of(record);
    if (space == Space::shared || own_epoch(e)) {
        std::string text = thread_of(record);
        if (thread_count(node) > 1) text += format_text(" or one of the next %u", thread_count(node) - 1);
        if (record & kManyBlocks) text += " and other blocks";
        return text;
    }
    const uint64_t number = launch->owner[e - launch->begin];
    const unsigned* g = launch->info->grid;
    return format_text("block (%u, %u, %u)", unsigned(number % g[0]), unsigned(number / g[0] % g[1]),
                       unsigned(number / (uint64_t(g[0]) * g[1])));
}

void file(Finding f) {
    if (bad_index_waits()) settle_bad_index();
    if (!strcmp(f.code, "out_of_bounds")) overflow_explains(f);   // an index that wrapped is the better explanation
    report(std::move(f));
}

void past_the_end(Finding& f, const std::string& what, const std::string& name, uintptr_t address, size_t bytes,
                  uintptr_t base, size_t size) {
    f.code = "out_of_bounds";
    f.has_past = true;
    const bool before = address < base;
    f.bytes_past = before ? long(base - address) : long(address + bytes - base - size);
    const char* side = before ? " before the start of " : " past the end of ";
    f.text = "out-of-bounds " + what + ": " + bytes_text(f.bytes_past) + side + name;
    f.text += format_text(", which has %zu bytes", size);
}

void illegal_in_arena(Finding f, const std::string& what, uintptr_t address, size_t bytes) {
    const uintptr_t base = arena.base + size_t(current->block->slot) * Arena::kSharedSlot;
    if (address - arena.base < Arena::kSharedZone && address - base < 2 * Arena::kSharedSlot && !usual_target(f.pc)) {
        f.tensor = "shared memory";
        past_the_end(f, what, "dynamic shared memory", address, bytes, base, launch->shared_bytes);
        file(std::move(f));
        return;
    }
    Allocation* inside = arena.find(address);
    // An address in freed memory: meant, if that tensor was passed in; else some other tensor's index went astray.
    if (inside && inside->freed && (is_argument(*inside) || !owner_of(address))) {
        const Named name = name_of(*inside);
        f.code = "use_after_free";
        f.tensor = name.tensor;
        f.text = "use after free: " + what + " in " + name.text + ", which was freed before this launch";
        file(std::move(f));
        return;
    }
    Allocation* a = inside && !inside->freed ? inside : usual_target(f.pc);
    if (!a) a = owner_of(address);
    if (!a) {
        f.code = "out_of_bounds";
        f.text = "out-of-bounds " + what + " at an address where no tensor lies";
    } else {
        const Named name = name_of(*a);
        f.tensor = name.tensor;
        past_the_end(f, what, name.text, address, bytes, a->base, a->size);
    }
    file(std::move(f));
}
}  // namespace

const char* access_verb(unsigned access) {
    if (access & kAtomicAccess) return "atomic";
    return access & kWrite ? "write" : "read";
}

void remember_target(void* pc, uintptr_t allocation) { target_of(pc) = {pc, allocation}; }

Finding race_finding(uintptr_t address, unsigned access, void* pc, uint64_t other, bool other_wrote, Space space) {
    Finding f;
    f.code = space == Space::shared ? "race_shared" : "race_global";
    f.pc = pc;
    const Named name = name_of(address);
    f.tensor = name.tensor;
    const char* other_verb = other_wrote ? (other & kAtomic ? "atomic" : "write") : "read";
    f.text = format_text("race on %s: this %s and the earlier %s by %s are not ordered by any barrier",
                         name.text.c_str(), access_verb(access), other_verb, who_was(other, space).c_str());
    return f;
}

Finding uninitialised_finding(uintptr_t address, unsigned access, void* pc) {
    Finding f;
    f.code = "uninitialised_read";
    f.pc = pc;
    const Named name = name_of(address);
    f.tensor = name.tensor;
    const std::string what = access & kAtomicAccess ? "atomic update" : "read";
    f.text = what + " of " + name.text + ", which nobody has written";
    return f;
}

void report_illegal(uintptr_t address, size_t bytes, unsigned access, void* pc) {
    Finding f;
    f.pc = pc;
    const std::string what = std::string(access_verb(access)) + " of " + bytes_text(long(bytes));
    if (arena.contains(reinterpret_cast<void*>(address))) {
        illegal_in_arena(std::move(f), what, address, bytes);
        return;
    }
    if (address < 65536) {
        f.code = "out_of_bounds";
        f.text = what + format_text(" through a null pointer (address %zu)", size_t(address));
        file(std::move(f));
        return;
    }
    char probe;
    iovec local{&probe, 1}, remote{reinterpret_cast<void*>(address), 1};
    const bool mapped = process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == 1;
    const std::string argument = host_argument(address);
    if (Allocation* a = argument.empty() ? usual_target(pc) : nullptr) {   // an index so wrong that it leaves the arena
        const Named name = name_of(*a);
        f.tensor = name.tensor;
        past_the_end(f, what, name.text, address, bytes, a->base, a->size);
        file(std::move(f));
        return;
    }
    const uintptr_t shared_end = hot.shared.low + hot.shared.size;
    if (mapped && argument.empty() && hot.shared.size && address >= shared_end && address < shared_end + (64 << 10)) {
        report_shared_overrun(address, bytes, access, pc);
        return;
    }
    if (mapped || !argument.empty()) {
        f.code = "host_pointer";
        f.tensor = argument;
        f.text = what + " through a host pointer: " + (argument.empty() ? "the memory" : "`" + argument + "`") +
                 " is in host memory, not on the device (was it moved with .cuda()?)";
    } else {
        f.code = "out_of_bounds";
        f.text = "out-of-bounds " + what;
        f.text += format_text(" at address 0x%zx, which is not device memory", size_t(address));
    }
    file(std::move(f));
}

void report_shared_overrun(uintptr_t address, size_t bytes, unsigned access, void* pc) {
    const Module& module = *launch->module;
    const size_t offset = address - hot.shared.low + module.shared_low;
    const SharedSymbol* s = module.symbol_at(offset);
    if (!s) s = module.symbol_before(offset);
    while (s && launch->foreign[size_t(s - module.shared.data())]) s = s == module.shared.data() ? nullptr : s - 1;
    Finding f;
    f.pc = pc;
    const std::string what = std::string(access_verb(access)) + " of " + bytes_text(long(bytes));
    if (s) {   // the nearest array of this kernel is the one that was overrun
        f.tensor = s->name;
        past_the_end(f, what, "shared array `" + s->name + "`", offset, bytes, s->offset, s->size);
    } else {
        f.code = "out_of_bounds";
        f.text = "out-of-bounds " + what + " before the kernel's first shared array";
    }
    file(std::move(f));
}

}  // namespace csim
