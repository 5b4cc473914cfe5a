#include "torch/assumed.h"

#include <ATen/ATen.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <unordered_set>

#include "configuration.h"
#include "torch/tensors.h"

namespace simulator {
namespace {

std::mutex mutex;
std::atomic<size_t> marked_count{0};  // so that nothing is locked while nothing is assumed

// Never destroyed: memory is freed while the process exits as well.
std::unordered_set<const void*>& marked() {
  static auto* const addresses = new std::unordered_set<const void*>;
  return *addresses;
}

const void* storage_address(const at::Tensor& tensor) {
  if (!is_device_tensor(tensor) || !tensor.has_storage()) return nullptr;
  return tensor.storage().data();
}

void erase(const void* address) {
  if (address == nullptr || marked_count == 0) return;
  const std::lock_guard<std::mutex> lock(mutex);
  marked_count -= marked().erase(address);
}

bool starts_with(const std::string& text, const char* prefix) { return text.rfind(prefix, 0) == 0; }

// Results that are indices, in which any number but 0 may be out of range. Where the range is known, others replace them.
bool makes_indices(const std::string& name) {
  for (const char* prefix : {"aten::arg", "aten::multinomial", "aten::topk", "aten::sort", "aten::searchsorted", "aten::bucketize"}) {
    if (starts_with(name, prefix)) return true;
  }
  return false;
}

// Comparisons with a number that select elements: as true, the tensors whose shapes depend on them are as large as they can be.
bool selects(const std::string& name) {
  for (const char* prefix : {"aten::ne.Scalar", "aten::gt.", "aten::ge.", "aten::lt.", "aten::le."}) {
    if (starts_with(name, prefix)) return true;
  }
  return false;
}

constexpr size_t largest_selection = 16 << 20;  // bytes that are written for it

// Zeros without touching pages that lie wholly within: they are given back and read as zeros.
void clear_memory(void* address, size_t bytes) {
  static const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  char* const begin = static_cast<char*>(address);
  char* const end = begin + bytes;
  char* const first = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(begin) + page - 1) / page * page);
  char* const last = reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(end) / page * page);
  if (first >= last || madvise(first, last - first, MADV_DONTNEED) != 0) {
    std::memset(begin, 0, bytes);
    return;
  }
  std::memset(begin, 0, first - begin);
  std::memset(last, 0, end - last);
}

}  // namespace

bool is_assumed(const at::Tensor& tensor) {
  if (marked_count == 0) return false;
  const void* const address = storage_address(tensor);
  if (address == nullptr) return false;
  const std::lock_guard<std::mutex> lock(mutex);
  return marked().count(address) != 0;
}

void mark_assumed(const at::Tensor& tensor) {
  const void* const address = storage_address(tensor);
  if (address == nullptr) return;
  const std::lock_guard<std::mutex> lock(mutex);
  marked_count += marked().insert(address).second;
}

void mark_computed(const at::Tensor& tensor) {
  if (marked_count == 0) return;
  const void* const address = storage_address(tensor);
  if (address != nullptr && tensor.nbytes() >= tensor.storage().nbytes()) erase(address);
}

void forget_assumed(const void* address) { erase(address); }

void fill_plausible(const at::Tensor& tensor, const std::string& operator_name) {
  if (!is_device_tensor(tensor) || tensor.numel() == 0) return;
  if (tensor.nbytes() > configuration().value_bytes) {
    const bool selection = tensor.scalar_type() == at::kBool && tensor.nbytes() <= largest_selection && selects(operator_name);
    if (selection) {
      on_host(tensor).fill_(true);
    } else if (tensor.is_non_overlapping_and_dense()) {
      clear_memory(tensor.data_ptr(), tensor.nbytes());
    }
    return;
  }
  double value = 0;
  if (tensor.scalar_type() == at::kBool) {
    value = starts_with(operator_name, "aten::any") ? 0 : 1;
  } else if (tensor.numel() == 1) {
    const bool index = at::isIntegralType(tensor.scalar_type(), true) && makes_indices(operator_name);
    value = index ? 0 : 1;
  }
  on_host(tensor).fill_(value);
}

void make_finite(const at::Tensor& tensor) {
  if (!is_device_tensor(tensor) || !at::isFloatingType(tensor.scalar_type()) || tensor.numel() == 0) return;
  if (tensor.nbytes() > configuration().value_bytes || tensor.element_size() == 1) return;  // of one byte: float8
  // Masks hold minus infinity on purpose; a single number, such as a loss, does not.
  const at::Tensor values = on_host(tensor);
  const at::Tensor bad = tensor.numel() == 1 ? values.isfinite().logical_not_() : values.isnan().logical_or_(values.isposinf());
  values.masked_fill_(bad, 1.0);
}

}  // namespace simulator
