// In its place among cub's headers; the contents are in device/device_reduce.cuh.
#pragma once
#include "cub/device/device_reduce.cuh"
