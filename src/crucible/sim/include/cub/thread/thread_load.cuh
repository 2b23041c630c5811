// In its place among cub's headers; the contents are in util.cuh.
#pragma once
#include "cub/util.cuh"
