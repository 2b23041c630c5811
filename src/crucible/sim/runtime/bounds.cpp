// An index past the end of an array type, as the compiler's bounds check sees it.
//
// The check knows the type of one dimension and not the array. Where the access that follows lies in a shared array,
// that array decides: an index that stays inside it is a two-dimensional array walked as one, which works on every
// chip. Anything else (local arrays above all, whose accesses are not seen) is reported.
#include "bounds.h"

#include "engine.h"
#include "modules.h"

namespace csim {
namespace {
Finding noted;
long noted_index = 0;
uint32_t noted_leaf = 0;
int patience = 0;   // other accesses that may come first: operands of the same statement
}  // namespace

void note_bad_index(Finding f, long index) {
    if (patience) settle_bad_index();
    noted = std::move(f);
    noted_index = index;
    noted_leaf = hot.leaf;
    patience = 6;
    hot.fast_epoch = ~0u;
}

bool bad_index_waits() { return patience > 0; }

void judge_bad_index(uintptr_t address, size_t bytes) {
    if (noted_leaf == hot.leaf && hot.shared.size && address - hot.shared.low < hot.shared.size) {
        const Module& m = *launch->module;
        const size_t offset = address - hot.shared.low + m.shared_low;
        const SharedSymbol* s = m.symbol_at(offset);
        const long start = long(offset) - noted_index * long(bytes);   // where the row began, if this is the access
        if (s && start >= long(s->offset) && start < long(s->offset + s->size)) {
            patience = 0;
            refresh_hot();
            return;
        }
    }
    if (--patience == 0) settle_bad_index();
}

void settle_bad_index() {
    patience = 0;
    report(std::move(noted));
}

void forget_bad_index() { patience = 0; }

}  // namespace csim
