// Counts operators without a kernel (views) and records collectives: neither reaches the wrappers that compute values.
#pragma once

#include <cstdint>

namespace simulator {

// Registers a wrapper around each operator that returns a view, around those by which the host reads a value, and around
// collectives. Each calls the kernel that it replaces.
void watch_views_and_collectives();

// The views of this thread since the last call.
uint16_t take_views();

// The host waits for the device (operators.cpp).
void host_waits();

}  // namespace simulator
