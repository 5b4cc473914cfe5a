// The ledger: who uses how much memory of which simulated GPU. The processes of a rehearsal share the file FOLDER/ledger; without
// a folder a process keeps one for itself.
//
// Layout of the file, little-endian, version 2 (Python's struct format in parentheses):
//   header, 192 bytes:  char magic[8] "SHOELEDG"; uint32 version, slots, gpus, slot_bytes; uint64 memory (bytes of a GPU);
//                       uint64 reserved[4]; uint64 peak[16] (largest use of each GPU by all processes together)
//                       ("<8s4IQ4Q16Q")
//   slots x 304 bytes:  int32 pid (0: never used); uint32 reserved; uint64 started (of the process, clock ticks after boot:
//                       field 22 of /proc/PID/stat); uint64 arena_begin, arena_end; uint64 used[16]; uint64 peak[16];
//                       int8 gpus[16] (which GPU each of the process's devices is; -1: it has no such device)
//                       ("<iI3Q16Q16Q16b")
// The index of a GPU is its number without CUDA_VISIBLE_DEVICES. What a process that no longer exists used does not count; its
// slot stays readable until no other is free.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace simulator {

constexpr int most_gpus = 16;

struct LedgerHeader {
  char magic[8];
  uint32_t version;
  uint32_t slots;
  uint32_t gpus;
  uint32_t slot_bytes;
  uint64_t memory;
  uint64_t reserved[4];
  uint64_t peak[most_gpus];
};
static_assert(sizeof(LedgerHeader) == 192);

struct LedgerSlot {
  int32_t pid;
  uint32_t reserved;
  uint64_t started;
  uint64_t arena_begin;
  uint64_t arena_end;
  uint64_t used[most_gpus];
  uint64_t peak[most_gpus];
  int8_t gpus[most_gpus];
};
static_assert(sizeof(LedgerSlot) == 304);

struct ProcessUse {
  int32_t pid;
  uint64_t bytes;
};

class Ledger {
 public:
  static Ledger& get();

  // Counts bytes for this process; false if the GPU does not have them.
  bool take(int gpu, size_t bytes);
  void give(int gpu, size_t bytes);

  size_t used(int gpu);
  std::vector<ProcessUse> processes(int gpu);

  // After a fork the child has nothing of its parent's; its next use opens the ledger anew.
  void forget_after_fork();

 private:
  class Lock;

  Ledger() = default;
  void open_unlocked();
  void open_file(const char* folder);
  void open_private();
  LedgerSlot* own_slot();
  uint64_t sum(int gpu, bool only_living);

  std::mutex mutex_;
  int file_ = -1;
  LedgerHeader* header_ = nullptr;
  LedgerSlot* slots_ = nullptr;
  LedgerSlot* own_ = nullptr;
};

}  // namespace simulator
