// Signals on simulated threads: endless loops, stack overflow, traps of the processor.
#pragma once

namespace csim {
void watchdog_start(double seconds);   // processor time of the calling thread
void watchdog_stop();
}  // namespace csim
