// The part of the simulator's C interface that the torch device needs (see ../include/csim/abi.h for the device side).
#pragma once
#include <cstddef>

extern "C" {
void* csim_malloc(size_t bytes, const char* tag);
void csim_free(void* p);
int csim_is_device(const void* p);
void csim_mark_written(void* p, size_t bytes);
}
