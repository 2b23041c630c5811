// cuRAND's host library is not simulated: including the header is harmless, calling into it is a named compile error.
#pragma once

#include "curand_status.h"

typedef struct curandGenerator_st* curandGenerator_t;
#define CSIM_NO_CURAND \
    __attribute__((error("crucible-sim: cuRAND's host library is not simulated; use curand_kernel.h inside a kernel")))
extern "C" {
CSIM_NO_CURAND curandStatus_t curandCreateGenerator(curandGenerator_t*, curandRngType_t);
CSIM_NO_CURAND curandStatus_t curandDestroyGenerator(curandGenerator_t);
CSIM_NO_CURAND curandStatus_t curandSetPseudoRandomGeneratorSeed(curandGenerator_t, unsigned long long);
CSIM_NO_CURAND curandStatus_t curandGenerateUniform(curandGenerator_t, float*, unsigned long);
CSIM_NO_CURAND curandStatus_t curandGenerateNormal(curandGenerator_t, float*, unsigned long, float, float);
CSIM_NO_CURAND curandStatus_t curandGenerate(curandGenerator_t, unsigned*, unsigned long);
}
#undef CSIM_NO_CURAND
