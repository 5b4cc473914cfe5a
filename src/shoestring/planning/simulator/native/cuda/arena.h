// The addresses of simulated device memory: one range of the process, reserved at once and without memory behind it. The host
// gives pages to it as they are written, so what no kernel wrote costs nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>

#include "ranges.h"

namespace simulator {

// What CUDA maps memory in on a GPU.
constexpr size_t granule = size_t{2} << 20;

class Arena {
 public:
  static Arena& get();

  uintptr_t begin() const { return begin_; }
  uintptr_t end() const { return end_; }

  bool contains(const void* address) const {
    const auto value = reinterpret_cast<uintptr_t>(address);
    return value >= begin_ && value < end_;
  }

  // Addresses for `bytes` (rounded up to whole granules), without access; nullptr if there are none left.
  void* reserve(size_t bytes);
  // The same at a given address.
  bool reserve_at(void* address, size_t bytes);
  // Makes reserved addresses readable and writable; false if the host refuses.
  bool open(void* address, size_t bytes);
  // Gives back the pages. The addresses stay readable: work that still names them, such as the replay of a graph whose memory
  // was freed, then reads zeros instead of ending the process.
  void drop_pages(void* address, size_t bytes);
  // Gives back pages and addresses.
  void release(void* address, size_t bytes);

 private:
  Arena();

  std::mutex mutex_;
  FreeRanges free_;
  uintptr_t begin_ = 0;
  uintptr_t end_ = 0;
};

}  // namespace simulator
