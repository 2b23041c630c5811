// Part of the cuRAND device library in CUDA; all of it is in curand_kernel.h here.
#pragma once
#include "curand_kernel.h"
