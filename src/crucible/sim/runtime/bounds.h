// An index past the end of an array type. Not yet a mistake: `tile[0][i]` may walk over all of `float tile[8][32]`, and
// code does.
#pragma once
#include <cstddef>
#include <cstdint>

#include "report.h"

namespace csim {

void note_bad_index(Finding f, long index);   // from the compiler's bounds check; the access itself follows
bool bad_index_waits();
void judge_bad_index(uintptr_t address, size_t bytes);   // an access: is it the one, and does it stay within its array?
void settle_bad_index();                                 // no such access came: report
void forget_bad_index();                                 // a new launch

}  // namespace csim
