// Memory statistics of this process: what PyTorch's caching allocator holds of each GPU, at its peak, in each phase and over
// time. They lie in the mapped file FOLDER/statistics.<pid>, so what was seen last survives any end of the process.
//
// The file (little-endian, read by statistics.py): one FileHeader, then `device_count` times a DeviceRecord. A device that was
// not used has `events` 0. The magic is written last.
#pragma once

#include <cstdint>

namespace simulator {

constexpr char statistics_magic[8] = {'S', 'H', 'O', 'E', 'S', 'T', 'A', 'T'};
constexpr uint32_t statistics_version = 1;
constexpr uint32_t phase_count = 6;  // loading, training, evaluation, generation, saving, other
constexpr uint32_t sample_capacity = 4096;

struct FileHeader {
  char magic[8];
  uint32_t header_bytes;
  uint32_t device_bytes;  // of one DeviceRecord
  uint32_t device_count;
  uint32_t phases;
  uint32_t samples;  // capacity of a device
  uint32_t version;
  int64_t process;
  uint64_t reserved[3];
};

// The largest bytes within `events_per_sample` events of the allocator, and the update and phase in which they were reached.
struct Sample {
  uint64_t event;  // number of the last event in it, from 1
  uint64_t allocated;
  uint64_t reserved;
  int64_t update;
  int64_t phase;
};

struct PhasePeak {
  uint64_t entered;  // 1 if the process was in this phase
  uint64_t allocated;
  uint64_t reserved;
};

struct DeviceRecord {
  uint64_t changes;  // odd while it is being written
  uint64_t events;
  uint64_t allocated;  // bytes of blocks in use, as torch.cuda.memory_allocated()
  uint64_t reserved;   // bytes of segments, as torch.cuda.memory_reserved()
  uint64_t peak_allocated;
  uint64_t peak_reserved;
  uint64_t out_of_memory_events;
  uint64_t events_per_sample;
  uint64_t sample_count;
  PhasePeak peaks[phase_count];
  Sample samples[sample_capacity];
};

static_assert(sizeof(FileHeader) == 64 && sizeof(Sample) == 40 && sizeof(PhasePeak) == 24, "statistics.py reads this layout");

// Attaches to the allocator of CUDA memory. Safe while the allocator holds its lock, as in an allocation that comes first.
void start_statistics();

// For allocators that announce nothing (cudaMallocAsync): asks them for their numbers.
void poll_statistics();

void set_statistics_phase(int phase);
void set_statistics_update(int64_t update);

}  // namespace simulator
