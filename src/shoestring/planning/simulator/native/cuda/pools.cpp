#include "pools.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "arena.h"
#include "devices.h"
#include "interface.h"
#include "ledger.h"
#include "memory.h"
#include "streams.h"

namespace simulator {
namespace {

constexpr size_t chunk_bytes = size_t{32} << 20;
constexpr size_t alignment = 512;

std::mutex pools_mutex;
std::atomic<bool> has_pools{false};

// Which pool each allocation belongs to.
std::map<const void*, Pool*>& owners() {
  static auto* const instance = new std::map<const void*, Pool*>;
  return *instance;
}

void set_owner(const void* address, Pool* pool) {
  std::lock_guard<std::mutex> guard(pools_mutex);
  if (pool != nullptr)
    owners()[address] = pool;
  else
    owners().erase(address);
}

}  // namespace

Error Pool::grow(size_t bytes) {
  bytes = round_up(bytes, granule);
  if (const Error failed = take_device_bytes(device_, bytes)) return failed;
  void* begin = Arena::get().reserve(bytes);
  if (begin == nullptr || !Arena::get().open(begin, bytes)) {
    give_device_bytes(device_, bytes);
    return error::out_of_memory;
  }
  Chunk& chunk = chunks_[reinterpret_cast<uintptr_t>(begin)];
  chunk.bytes = bytes;
  chunk.free.give(reinterpret_cast<uintptr_t>(begin), bytes);
  reserved_ += bytes;
  most_reserved_ = std::max(most_reserved_, reserved_);
  return error::success;
}

Error Pool::allocate(void** address, size_t bytes) {
  *address = nullptr;
  if (bytes == 0) return error::success;
  if (fails_by_request(bytes)) return error::out_of_memory;
  std::lock_guard<std::mutex> guard(mutex_);
  bytes = round_up(bytes, alignment);
  for (int attempt = 0;; ++attempt) {
    for (auto& [begin, chunk] : chunks_) {
      const uintptr_t found = chunk.free.take(bytes);
      if (found == 0) continue;
      ++chunk.allocations;
      allocations_[found] = bytes;
      used_ += bytes;
      most_used_ = std::max(most_used_, used_);
      *address = reinterpret_cast<void*>(found);
      note_allocation(*address, bytes, device_, MemoryKind::pool);
      set_owner(*address, this);
      has_pools = true;
      return error::success;
    }
    if (attempt > 0) return error::out_of_memory;
    if (grow(std::max(bytes, chunk_bytes)) == error::success) continue;
    // A full GPU: what the pool does not use is given back first, and no more is taken than is needed.
    trim_unlocked(0);
    if (const Error failed = grow(bytes)) return failed;
  }
}

Error Pool::free(void* address) {
  std::lock_guard<std::mutex> guard(mutex_);
  const auto begin = reinterpret_cast<uintptr_t>(address);
  auto allocation = allocations_.find(begin);
  if (allocation == allocations_.end()) return error::invalid_value;
  auto chunk = std::prev(chunks_.upper_bound(begin));
  chunk->second.free.give(begin, allocation->second);
  --chunk->second.allocations;
  used_ -= allocation->second;
  allocations_.erase(allocation);
  forget_allocation(address);
  set_owner(address, nullptr);
  return error::success;
}

void Pool::trim_unlocked(size_t kept) {
  for (auto chunk = chunks_.begin(); chunk != chunks_.end() && reserved_ > kept;) {
    if (chunk->second.allocations > 0) {
      ++chunk;
      continue;
    }
    Arena::get().release(reinterpret_cast<void*>(chunk->first), chunk->second.bytes);
    give_device_bytes(device_, chunk->second.bytes);
    reserved_ -= chunk->second.bytes;
    chunk = chunks_.erase(chunk);
  }
}

void Pool::trim(size_t kept) {
  std::lock_guard<std::mutex> guard(mutex_);
  trim_unlocked(kept);
}

void Pool::trim_to_threshold() {
  std::lock_guard<std::mutex> guard(mutex_);
  trim_unlocked(threshold_);
}

Error Pool::get_attribute(int attribute, void* value) {
  std::lock_guard<std::mutex> guard(mutex_);
  auto* number = static_cast<uint64_t*>(value);
  switch (attribute) {
    case 1:  // whether memory is reused across streams: follow events, if done, with new dependencies
    case 2:
    case 3:
      *static_cast<int*>(value) = 1;
      return error::success;
    case 4:
      *number = threshold_;
      return error::success;
    case 5:
      *number = reserved_;
      return error::success;
    case 6:
      *number = most_reserved_;
      return error::success;
    case 7:
      *number = used_;
      return error::success;
    case 8:
      *number = most_used_;
      return error::success;
    default:
      return error::invalid_value;
  }
}

Error Pool::set_attribute(int attribute, const void* value) {
  std::lock_guard<std::mutex> guard(mutex_);
  switch (attribute) {
    case 1:
    case 2:
    case 3:
      return error::success;
    case 4:
      std::memcpy(&threshold_, value, sizeof threshold_);
      return error::success;
    case 6:
      most_reserved_ = reserved_;
      return error::success;
    case 8:
      most_used_ = used_;
      return error::success;
    default:
      return error::invalid_value;
  }
}

Pool* default_pool(int device) {
  static std::atomic<Pool*> pools[most_gpus];
  if (pools[device] == nullptr) {
    std::lock_guard<std::mutex> guard(pools_mutex);
    if (pools[device] == nullptr) pools[device] = new Pool(device);
  }
  return pools[device];
}

Pool*& current_pool(int device) {
  static Pool* pools[most_gpus];
  if (pools[device] == nullptr) pools[device] = default_pool(device);
  return pools[device];
}

Pool* pool_of(const void* address) {
  std::lock_guard<std::mutex> guard(pools_mutex);
  auto found = owners().find(address);
  return found != owners().end() ? found->second : nullptr;
}

void trim_pools() {
  if (!has_pools) return;
  for (int device = 0; device < device_count(); ++device) current_pool(device)->trim_to_threshold();
}

}  // namespace simulator

using namespace simulator;

namespace {

// The beginning of cudaMemPoolProps (driver_types.h): allocType, handleTypes, location {type, id}.
struct PoolProps {
  int allocation_type;
  int handle_types;
  int location_type;
  int location;
};

Pool* pool_of_handle(void* handle) { return static_cast<Pool*>(handle); }

}  // namespace

EXPORT int cudaMallocFromPoolAsync(void** address, size_t bytes, void* pool, void*) {
  Pool* from = pool_of_handle(pool);
  if (const Error failed = enter(from->device())) return report(failed);
  return report(from->allocate(address, bytes));
}

EXPORT int cudaMallocAsync(void** address, size_t bytes, void* stream) {
  const int device = current_device();
  if (const Error failed = enter(device)) return report(failed);
  return report(current_pool(stream_of(stream)->device)->allocate(address, bytes));
}

EXPORT int cudaFreeAsync(void* address, void* stream) {
  if (address == nullptr) return error::success;
  if (const Error failed = initialize()) return report(failed);
  if (is_capturing(stream)) {
    // The graph's replays use the memory; it goes when the node, and so every graph that has it, is gone.
    std::shared_ptr<void> holder(address, [](void* held) { cudaFreeAsync(held, nullptr); });
    submit(stream, NodeKind::empty, [holder] {});
    return error::success;
  }
  Pool* pool = pool_of(address);
  return report(pool != nullptr ? pool->free(address) : free_device(address));
}

EXPORT int cudaDeviceGetDefaultMemPool(void** pool, int device) {
  if (!is_device_number(device)) return report(error::invalid_device);
  *pool = default_pool(device);
  return error::success;
}

EXPORT int cudaDeviceGetMemPool(void** pool, int device) {
  if (!is_device_number(device)) return report(error::invalid_device);
  *pool = current_pool(device);
  return error::success;
}

EXPORT int cudaDeviceSetMemPool(int device, void* pool) {
  if (!is_device_number(device)) return report(error::invalid_device);
  current_pool(device) = pool_of_handle(pool);
  return error::success;
}

EXPORT int cudaMemPoolCreate(void** pool, const PoolProps* props) {
  if (!is_device_number(props->location)) return report(error::invalid_device);
  *pool = new Pool(props->location);
  return error::success;
}

EXPORT int cudaMemPoolDestroy(void* pool) {
  // Not deleted: allocations of a pool may outlive it, and its memory goes with the last of them.
  pool_of_handle(pool)->trim(0);
  return error::success;
}

EXPORT int cudaMemPoolGetAttribute(void* pool, int attribute, void* value) {
  return report(pool_of_handle(pool)->get_attribute(attribute, value));
}

EXPORT int cudaMemPoolSetAttribute(void* pool, int attribute, void* value) {
  return report(pool_of_handle(pool)->set_attribute(attribute, value));
}

EXPORT int cudaMemPoolTrimTo(void* pool, size_t kept) {
  pool_of_handle(pool)->trim(kept);
  return error::success;
}

EXPORT int cudaMemPoolSetAccess(void*, const void*, size_t) { return error::success; }

EXPORT int cudaMemPoolGetAccess(int* flags, void*, void*) {
  *flags = 3;  // cudaMemAccessFlagsProtReadWrite
  return error::success;
}
