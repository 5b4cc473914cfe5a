// Counts through the allocator's trace trackers, which are called for every action, with the lock of the device's allocator
// held. A tracker therefore takes no lock but its device's own, and never Python's.
//
// The trackers are told the requested bytes of a block, PyTorch reports those of the whole block. These are found from the
// allocator's own numbers: an allocation is announced before it is counted, and nothing else is counted until the next
// announcement, so by what `active_bytes` has grown in between is the block's size. A free is announced after it has left
// `allocated_bytes` and before it leaves `active_bytes`.
#include "torch/statistics.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <cstring>
#include <mutex>
#include <string>

#include "interface.h"
#include "torch/assumed.h"

namespace simulator {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

constexpr int largest_device_count = 64;

std::atomic<int64_t> current_phase{0};
std::atomic<int64_t> current_update{0};
std::atomic<bool> polls{false};
int device_count = 0;

// What the allocator says of itself.
struct Counted {
  uint64_t allocated = 0;
  uint64_t active = 0;
  uint64_t reserved = 0;
};

struct Device {
  std::mutex mutex;
  DeviceRecord* record = nullptr;
  Counted last;
  uint64_t events_in_sample = 0;  // of the last sample
  bool block_pending = false;  // an allocation was announced and is not yet counted
};

// Never destroyed: blocks are freed while the process exits as well.
Device* devices() {
  static Device* const all = new Device[largest_device_count];
  return all;
}

std::atomic<FileHeader*> mapped{nullptr};
std::once_flag mapped_once;

// A child without exec has no device; what it frees is not its own.
void forget_in_child() {
  mapped = nullptr;
  for (int i = 0; i < largest_device_count; ++i) devices()[i].record = nullptr;
}

void map_file() {
  const char* folder = simulator_folder();
  if (folder == nullptr) return;
  const std::string path = std::string(folder) + "/statistics." + std::to_string(getpid());
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return;
  const size_t bytes = sizeof(FileHeader) + sizeof(DeviceRecord) * device_count;
  void* address = MAP_FAILED;
  if (ftruncate(file, static_cast<off_t>(bytes)) == 0) {
    address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  close(file);
  if (address == MAP_FAILED) return;
  auto* header = static_cast<FileHeader*>(address);
  header->header_bytes = sizeof(FileHeader);
  header->device_bytes = sizeof(DeviceRecord);
  header->device_count = device_count;
  header->phases = phase_count;
  header->samples = sample_capacity;
  header->version = statistics_version;
  header->process = getpid();
  auto* records = reinterpret_cast<DeviceRecord*>(header + 1);
  for (int i = 0; i < device_count; ++i) {
    records[i].events_per_sample = 1;
    devices()[i].record = records + i;
  }
  std::memcpy(header->magic, statistics_magic, sizeof(statistics_magic));  // last: a reader sees a whole header or none
  pthread_atfork(nullptr, nullptr, forget_in_child);
  mapped = header;
}

Counted counted(int device) {
  const auto stats = allocator::getDeviceStats(static_cast<c10::DeviceIndex>(device));
  constexpr size_t aggregate = 0;  // StatType::AGGREGATE
  return {static_cast<uint64_t>(stats.allocated_bytes[aggregate].current),
          static_cast<uint64_t>(stats.active_bytes[aggregate].current),
          static_cast<uint64_t>(stats.reserved_bytes[aggregate].current)};
}

// Halves the samples: pairs become one, with the larger values. Their capacity is even, so none is left over.
void merge_samples(DeviceRecord& record) {
  const uint64_t half = record.sample_count / 2;
  for (uint64_t i = 0; i < half; ++i) {
    const Sample& first = record.samples[2 * i];
    const Sample& second = record.samples[2 * i + 1];
    Sample merged = second.allocated >= first.allocated ? second : first;
    merged.event = second.event;
    merged.reserved = std::max(first.reserved, second.reserved);
    record.samples[i] = merged;
  }
  record.sample_count = half;
  record.events_per_sample *= 2;
}

// Takes note of bytes that are held at this moment. `event`: whether they belong to an event after the last one.
void note_bytes(Device& device, uint64_t allocated, uint64_t reserved, bool event) {
  DeviceRecord& record = *device.record;
  const int64_t phase = current_phase;
  PhasePeak& peak = record.peaks[std::clamp<int64_t>(phase, 0, phase_count - 1)];
  peak.entered = 1;
  peak.allocated = std::max(peak.allocated, allocated);
  peak.reserved = std::max(peak.reserved, reserved);
  record.peak_allocated = std::max(record.peak_allocated, allocated);
  record.peak_reserved = std::max(record.peak_reserved, reserved);
  record.allocated = allocated;
  record.reserved = reserved;
  if (event) {
    ++record.events;
    if (record.sample_count == 0 || device.events_in_sample == record.events_per_sample) {
      if (record.sample_count == sample_capacity) merge_samples(record);
      record.samples[record.sample_count++] = Sample{record.events, allocated, reserved, current_update, phase};
      device.events_in_sample = 1;
      return;
    }
    ++device.events_in_sample;
  }
  if (record.sample_count == 0) return;
  Sample& sample = record.samples[record.sample_count - 1];
  sample.event = record.events;
  sample.reserved = std::max(sample.reserved, reserved);
  if (allocated > sample.allocated) {
    sample.allocated = allocated;
    sample.update = current_update;
    sample.phase = phase;
  }
}

// An announced block is counted by now: its bytes were held from the announcement on.
void settle(Device& device, const Counted& now) {
  if (!device.block_pending) return;
  device.block_pending = false;
  const uint64_t block = now.active > device.last.active ? now.active - device.last.active : 0;
  note_bytes(device, device.last.allocated + block, device.last.reserved, false);
}

// The record changes within this guard; a reader tries again if it saw an odd number or two different ones.
class Change {
 public:
  explicit Change(DeviceRecord& record) : record_(record) { __atomic_add_fetch(&record_.changes, 1, __ATOMIC_SEQ_CST); }
  ~Change() { __atomic_add_fetch(&record_.changes, 1, __ATOMIC_SEQ_CST); }

 private:
  DeviceRecord& record_;
};

void track(const allocator::TraceEntry& entry) {
  using Action = allocator::TraceEntry::Action;
  if (entry.action_ == Action::SNAPSHOT || entry.device_ < 0 || entry.device_ >= device_count) return;
  if (entry.action_ == Action::FREE_REQUESTED) forget_assumed(reinterpret_cast<void*>(entry.addr_));
  std::call_once(mapped_once, map_file);
  Device& device = devices()[entry.device_];
  if (device.record == nullptr) return;
  const Counted now = counted(entry.device_);
  const std::lock_guard<std::mutex> lock(device.mutex);
  DeviceRecord& record = *device.record;
  const Change change(record);
  settle(device, now);
  uint64_t allocated = now.allocated;
  if (entry.action_ == Action::ALLOC) {
    device.block_pending = true;
    allocated += (entry.size_ + 511) / 512 * 512;  // at least; the rest of the block is known at the next event
  }
  if (entry.action_ == Action::OOM) ++record.out_of_memory_events;
  note_bytes(device, allocated, now.reserved, true);
  device.last = now;
}

// Settles the last block of each device, and takes what is held now as held in this phase.
void refresh() {
  if (mapped.load() == nullptr) return;
  for (int i = 0; i < device_count; ++i) {
    Device& device = devices()[i];
    if (device.record == nullptr || (device.record->events == 0 && !polls)) continue;
    const uint64_t events = device.record->events;
    const Counted now = counted(i);  // takes the allocator's lock, so it comes before the device's own
    const std::lock_guard<std::mutex> lock(device.mutex);
    DeviceRecord& record = *device.record;
    const Change change(record);
    if (record.events == events) {
      settle(device, now);
      const bool changed = now.allocated != record.allocated || now.reserved != record.reserved;
      if (changed || record.events > 0) note_bytes(device, now.allocated, now.reserved, changed && polls);
    } else {
      note_bytes(device, record.allocated, record.reserved, false);
    }
  }
}

// The allocator calls this when it is about to take memory from the device, the first time before it holds any. Until then it
// may not be complete: this library is loaded while it asks for the devices' properties.
class Attach final : public c10::FreeMemoryCallback {
 public:
  bool Execute() override {
    static std::atomic<bool> attached{false};
    // Whoever comes while another thread attaches does not wait: it holds the lock of a device for which that one may wait.
    if (!attached.exchange(true)) allocator::get()->attachAllocatorTraceTracker(track);
    return false;  // no memory was freed
  }
};

}  // namespace

void start_statistics() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count <= 0) return;
  device_count = std::min(count, largest_device_count);
  allocator::CUDAAllocator* const used = allocator::get();
  if (used != nullptr && used->name() == "native") {
    c10::FreeCudaMemoryCallbacksRegistry()->Register("shoestring", [] { return std::unique_ptr<c10::FreeMemoryCallback>(new Attach); });
  } else {
    polls = true;
  }
}

void poll_statistics() {
  if (!polls) return;
  std::call_once(mapped_once, map_file);
  try {
    refresh();
  } catch (const c10::Error&) {
    polls = false;  // an allocator of the program's own, without numbers
  }
}

void set_statistics_phase(int phase) {
  refresh();  // what was held at the end of the last phase
  current_phase = phase;
  refresh();
}

void set_statistics_update(int64_t update) { current_update = update; }

}  // namespace simulator
