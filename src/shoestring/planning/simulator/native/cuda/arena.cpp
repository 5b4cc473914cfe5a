#include "arena.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdio>
#include <string>

#include "notes.h"

namespace simulator {
namespace {

// What follows from a refusal of the host looks to the script like a full GPU, so it has to be said that it is none.
void note_refusal(const char* what) {
  static std::atomic<bool> is_noted{false};
  if (is_noted.exchange(true)) return;
  std::fprintf(stderr, "shoestring: this machine refuses the %s for simulated GPU memory.\n", what);
  append_note(std::string("{\"kind\": \"host_refusal\", \"what\": \"") + what + "\"}");
}

}  // namespace

Arena& Arena::get() {
  static auto* const instance = new Arena;  // never destroyed: memory is freed until the process has ended
  return *instance;
}

Arena::Arena() {
  // Expandable segments reserve more than a whole GPU for each stream and kind of block, hence so much. Under a limit on the
  // address space (ulimit -v) less has to do.
  for (size_t bytes = size_t{16} << 40; bytes >= size_t{16} << 30; bytes /= 2) {
    void* mapped = mmap(nullptr, bytes + granule, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) continue;
    begin_ = round_up(reinterpret_cast<uintptr_t>(mapped), granule);
    end_ = begin_ + bytes;
    // Small tensors that are far apart would otherwise cost 2 MiB of the host each.
    madvise(reinterpret_cast<void*>(begin_), bytes, MADV_NOHUGEPAGE);
    free_.give(begin_, bytes);
    return;
  }
}

void* Arena::reserve(size_t bytes) {
  std::lock_guard<std::mutex> guard(mutex_);
  void* const address = reinterpret_cast<void*>(free_.take(round_up(bytes, granule)));
  if (address == nullptr) note_refusal("addresses");
  return address;
}

bool Arena::reserve_at(void* address, size_t bytes) {
  std::lock_guard<std::mutex> guard(mutex_);
  return free_.take_at(reinterpret_cast<uintptr_t>(address), round_up(bytes, granule));
}

bool Arena::open(void* address, size_t bytes) {
  const bool is_open = mprotect(address, bytes, PROT_READ | PROT_WRITE) == 0;
  if (!is_open) note_refusal("memory");
  return is_open;
}

void Arena::drop_pages(void* address, size_t bytes) { madvise(address, bytes, MADV_DONTNEED); }

void Arena::release(void* address, size_t bytes) {
  bytes = round_up(bytes, granule);
  drop_pages(address, bytes);
  std::lock_guard<std::mutex> guard(mutex_);
  free_.give(reinterpret_cast<uintptr_t>(address), bytes);
}

}  // namespace simulator
