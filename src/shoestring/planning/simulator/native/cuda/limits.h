// What a GPU of a compute capability offers: the facts that do not differ between the GPUs of one capability, and for those
// that do (the L2 cache), the value of the usual one.
#pragma once

#include <cstddef>

namespace simulator {

struct Limits {
  int capability;  // major * 10 + minor
  int threads_per_multiprocessor;
  int blocks_per_multiprocessor;
  int shared_per_multiprocessor;  // bytes
  int shared_per_block_opt_in;    // bytes, for kernels that ask for more than 48 KiB
  int shared_reserved_per_block;  // bytes
  int l2_cache;                   // bytes
  int memory_bus_bits;
  int clock_khz;
  int memory_clock_khz;
};

constexpr int threads_per_block = 1024;
constexpr int registers_per_multiprocessor = 65536;
constexpr int shared_per_block = 48 << 10;
constexpr int warp = 32;

// The limits of the simulated GPUs.
const Limits& limits();

}  // namespace simulator
