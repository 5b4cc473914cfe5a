// Processes that may end at any time, and words of shared memory to wait for.
#pragma once

#include <atomic>
#include <cstdint>

namespace simulator::nccl {

// Identifies a process also after its number was given to another.
struct Process {
  int32_t number = 0;
  uint64_t start = 0;  // in the kernel's ticks since the machine started; 0 if unknown

  static Process current();
  bool exists() const;  // false also for one that has ended and waits for its parent
};

// Sleeps until another process changes the word from `seen` and wakes, at most for this time.
void sleep_while(std::atomic<uint32_t>& word, uint32_t seen, int milliseconds);
void wake_all(std::atomic<uint32_t>& word);

double seconds_now();  // of the monotonic clock

}  // namespace simulator::nccl
