#pragma once
#include "crucible_torch.h"
