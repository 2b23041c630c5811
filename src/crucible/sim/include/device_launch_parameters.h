// The built-in variables: crucible_sim.h, which every source begins with, has them all.
#pragma once
