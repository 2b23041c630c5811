// A signed overflow that may explain a later out-of-bounds access of the same thread.
#pragma once
#include "report.h"

namespace csim {
void note_overflow(Finding f);
bool overflow_explains(Finding& f);   // replaces an out-of-bounds finding by the overflow behind it
void forget_overflow();
}  // namespace csim
