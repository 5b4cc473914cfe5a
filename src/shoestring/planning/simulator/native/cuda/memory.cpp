#include "memory.h"

#include <sys/mman.h>

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "arena.h"
#include "configuration.h"
#include "devices.h"
#include "interface.h"
#include "ledger.h"

namespace simulator {
namespace {

constexpr size_t largest_shared = size_t{1} << 20;
constexpr size_t shared_alignment = 512;
constexpr size_t page = 4096;

// 2 MiB of a device that several small allocations share.
struct SharedGranule {
  FreeRanges free;
  size_t allocations = 0;
};

// Allocations of segments that fail although there is memory.
struct Failures {
  uint64_t first = 0;  // the number of the first one, from 1; 0: none
  uint64_t count = 0;
  uint64_t requests = 0;
  size_t repeated_bytes = 0;  // PyTorch asks for them once more, after it emptied its cache
};

struct State {
  std::mutex mutex;
  std::map<uintptr_t, Allocation> allocations;
  std::map<uintptr_t, SharedGranule> shared[most_gpus];
  uint64_t next_id = 1;
  Failures failures{configuration().fail_at, 1};
};

State& state() {
  static auto* const instance = new State;  // never destroyed: memory is freed until the process has ended
  return *instance;
}

void add_unlocked(void* address, size_t bytes, int device, MemoryKind kind) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  state().allocations[begin] = {begin, bytes, device, kind, state().next_id++};
}

std::map<uintptr_t, Allocation>::iterator find_unlocked(uintptr_t address) {
  auto& allocations = state().allocations;
  auto found = allocations.upper_bound(address);
  if (found == allocations.begin()) return allocations.end();
  --found;
  // Empty registered ranges exist as well: they contain their first address.
  return address < found->second.begin + found->second.bytes || address == found->first ? found : allocations.end();
}

// Counted, accessible addresses in whole granules.
Error take_granules(void** address, size_t bytes, int device) {
  if (const Error failed = take_device_bytes(device, bytes)) return failed;
  void* begin = Arena::get().reserve(bytes);
  if (begin != nullptr && Arena::get().open(begin, bytes)) {
    *address = begin;
    return error::success;
  }
  if (begin != nullptr) Arena::get().release(begin, bytes);
  give_device_bytes(device, bytes);
  return error::out_of_memory;
}

void release_granules(void* address, size_t bytes, int device) {
  Arena::get().release(address, bytes);
  give_device_bytes(device, bytes);
}

Error allocate_shared_unlocked(void** address, size_t bytes, int device) {
  auto& granules = state().shared[device];
  for (auto& [begin, shared] : granules) {
    if (const uintptr_t found = shared.free.take(bytes)) {
      ++shared.allocations;
      *address = reinterpret_cast<void*>(found);
      return error::success;
    }
  }
  void* begin = nullptr;
  if (const Error failed = take_granules(&begin, granule, device)) return failed;
  SharedGranule& shared = granules[reinterpret_cast<uintptr_t>(begin)];
  shared.free.give(reinterpret_cast<uintptr_t>(begin), granule);
  *address = reinterpret_cast<void*>(shared.free.take(bytes));
  shared.allocations = 1;
  return error::success;
}

void free_shared_unlocked(const Allocation& allocation) {
  auto& granules = state().shared[allocation.device];
  auto found = std::prev(granules.upper_bound(allocation.begin));
  found->second.free.give(allocation.begin, allocation.bytes);
  if (--found->second.allocations > 0) return;
  release_granules(reinterpret_cast<void*>(found->first), granule, allocation.device);
  granules.erase(found);
}

void free_unlocked(const Allocation& allocation) {
  void* address = reinterpret_cast<void*>(allocation.begin);
  if (allocation.kind == MemoryKind::managed)
    Arena::get().release(address, allocation.bytes);
  else if (allocation.bytes <= largest_shared)
    free_shared_unlocked(allocation);
  else
    release_granules(address, allocation.bytes, allocation.device);
}

}  // namespace

Error take_device_bytes(int device, size_t bytes) {
  return Ledger::get().take(gpu_of(device), bytes) ? error::success : error::out_of_memory;
}

void give_device_bytes(int device, size_t bytes) { Ledger::get().give(gpu_of(device), bytes); }

bool fails_by_request(size_t bytes) {
  std::lock_guard<std::mutex> guard(state().mutex);
  Failures& failures = state().failures;
  const bool is_repeated = std::exchange(failures.repeated_bytes, 0) == bytes;
  if (is_repeated) return true;
  ++failures.requests;
  if (failures.first == 0 || failures.requests < failures.first || failures.requests - failures.first >= failures.count) return false;
  failures.repeated_bytes = bytes;
  return true;
}

EXPORT uint64_t simulator_fail_at(uint64_t first, uint64_t count) {
  std::lock_guard<std::mutex> guard(state().mutex);
  const uint64_t requests = state().failures.requests;
  state().failures = Failures{first, count};
  return requests;
}

Error allocate_device(void** address, size_t bytes, int device) {
  *address = nullptr;
  if (bytes == 0) return error::success;
  if (fails_by_request(bytes)) return error::out_of_memory;
  std::lock_guard<std::mutex> guard(state().mutex);
  const bool is_shared = bytes <= largest_shared;
  bytes = round_up(bytes, is_shared ? shared_alignment : granule);
  const Error failed = is_shared ? allocate_shared_unlocked(address, bytes, device) : take_granules(address, bytes, device);
  if (failed == error::success) add_unlocked(*address, bytes, device, MemoryKind::device);
  return failed;
}

void* allocate_uncounted(size_t bytes, int device) {
  bytes = round_up(bytes, granule);
  void* address = Arena::get().reserve(bytes);
  if (address == nullptr || !Arena::get().open(address, bytes)) return nullptr;
  note_allocation(address, bytes, device, MemoryKind::reserved);
  return address;
}

Error allocate_managed(void** address, size_t bytes, int device) {
  if (bytes == 0) return error::invalid_value;
  bytes = round_up(bytes, granule);
  // It may be larger than the GPU and moves between GPU and host as it is used, so it does not count as used.
  *address = Arena::get().reserve(bytes);
  if (*address == nullptr || !Arena::get().open(*address, bytes)) return error::out_of_memory;
  note_allocation(*address, bytes, device, MemoryKind::managed);
  return error::success;
}

Error free_device(void* address) {
  if (address == nullptr) return error::success;
  std::lock_guard<std::mutex> guard(state().mutex);
  auto found = state().allocations.find(reinterpret_cast<uintptr_t>(address));
  if (found == state().allocations.end()) return error::invalid_value;
  const MemoryKind kind = found->second.kind;
  if (kind != MemoryKind::device && kind != MemoryKind::managed) return error::invalid_value;
  free_unlocked(found->second);
  state().allocations.erase(found);
  return error::success;
}

Error allocate_host(void** address, size_t bytes, int device) {
  bytes = round_up(bytes > 0 ? bytes : 1, page);
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return error::out_of_memory;
  note_allocation(mapped, bytes, device, MemoryKind::host);
  *address = mapped;
  return error::success;
}

Error free_host(void* address) {
  if (address == nullptr) return error::success;
  std::lock_guard<std::mutex> guard(state().mutex);
  auto found = state().allocations.find(reinterpret_cast<uintptr_t>(address));
  if (found == state().allocations.end() || found->second.kind != MemoryKind::host) return error::invalid_value;
  munmap(address, found->second.bytes);
  state().allocations.erase(found);
  return error::success;
}

Error register_host(void* address, size_t bytes, int device) {
  std::lock_guard<std::mutex> guard(state().mutex);
  if (find_unlocked(reinterpret_cast<uintptr_t>(address)) != state().allocations.end())
    return error::host_memory_already_registered;
  add_unlocked(address, bytes, device, MemoryKind::registered_host);
  return error::success;
}

Error unregister_host(void* address) {
  std::lock_guard<std::mutex> guard(state().mutex);
  auto found = state().allocations.find(reinterpret_cast<uintptr_t>(address));
  if (found == state().allocations.end() || found->second.kind != MemoryKind::registered_host)
    return error::host_memory_not_registered;
  state().allocations.erase(found);
  return error::success;
}

void note_allocation(void* address, size_t bytes, int device, MemoryKind kind) {
  std::lock_guard<std::mutex> guard(state().mutex);
  add_unlocked(address, bytes, device, kind);
}

bool forget_allocation(void* address) {
  std::lock_guard<std::mutex> guard(state().mutex);
  return state().allocations.erase(reinterpret_cast<uintptr_t>(address)) > 0;
}

std::optional<Allocation> find_allocation(const void* address) {
  std::lock_guard<std::mutex> guard(state().mutex);
  auto found = find_unlocked(reinterpret_cast<uintptr_t>(address));
  if (found == state().allocations.end()) return std::nullopt;
  return found->second;
}

void free_all_of_device(int device) {
  std::lock_guard<std::mutex> guard(state().mutex);
  auto& allocations = state().allocations;
  for (auto each = allocations.begin(); each != allocations.end();) {
    const Allocation& allocation = each->second;
    const bool is_freed =
        allocation.device == device && (allocation.kind == MemoryKind::device || allocation.kind == MemoryKind::managed);
    if (is_freed) free_unlocked(allocation);
    each = is_freed ? allocations.erase(each) : std::next(each);
  }
}

}  // namespace simulator
