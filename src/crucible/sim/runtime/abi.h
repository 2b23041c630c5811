// The runtime's own view of the C interface it exports.
#pragma once
#include "../include/csim/abi.h"
