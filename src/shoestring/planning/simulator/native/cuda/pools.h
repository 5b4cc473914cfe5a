// Pools of cudaMallocAsync: memory that a pool keeps after it was freed, until a synchronization gives back what is above the
// pool's threshold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "errors.h"
#include "ranges.h"

namespace simulator {

class Pool {
 public:
  explicit Pool(int device) : device_(device) {}

  Error allocate(void** address, size_t bytes);
  Error free(void* address);
  // Gives back chunks without allocations until at most `kept` bytes are reserved.
  void trim(size_t kept);
  void trim_to_threshold();
  // Numbers of cudaMemPoolAttr (driver_types.h, CUDA 12.8 and 13.0).
  Error get_attribute(int attribute, void* value);
  Error set_attribute(int attribute, const void* value);
  int device() const { return device_; }

 private:
  struct Chunk {
    size_t bytes;
    FreeRanges free;
    size_t allocations = 0;
  };

  Error grow(size_t bytes);
  void trim_unlocked(size_t kept);

  const int device_;
  std::mutex mutex_;
  std::map<uintptr_t, Chunk> chunks_;
  std::map<uintptr_t, size_t> allocations_;
  uint64_t threshold_ = 0;
  uint64_t reserved_ = 0;
  uint64_t most_reserved_ = 0;
  uint64_t used_ = 0;
  uint64_t most_used_ = 0;
};

Pool* default_pool(int device);
Pool*& current_pool(int device);
// The pool that an address was taken from; nullptr if none.
Pool* pool_of(const void* address);
void trim_pools();

}  // namespace simulator
