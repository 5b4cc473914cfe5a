#include "libraries/nccl_collectives.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "interface.h"
#include "libraries/nccl_reduction.h"

namespace simulator::nccl {

namespace {

// A collective as steps over one range of elements: ranks write a piece of their input to their slots, and all read.
struct Steps {
  size_t elements = 0;
  bool contributes = true;
  // Takes from the slots, which hold the elements from `begin` to `end`, what this rank receives.
  std::function<void(size_t begin, size_t end)> receive;
};

class Collective {
 public:
  Collective(Communicator& communicator, const Operation& operation)
      : communicator_(communicator), operation_(operation), element_(element_bytes(operation.type)) {}

  Steps steps() const {
    const auto ranks = static_cast<size_t>(communicator_.ranks());
    const auto rank = static_cast<size_t>(communicator_.rank());
    const size_t count = operation_.count;
    const bool is_root = communicator_.rank() == operation_.peer;
    const auto nothing = [](size_t, size_t) {};
    switch (operation_.kind) {
      case Kind::all_reduce:
        return {count, true, [this](size_t begin, size_t end) { reduce_range(begin, begin, end, begin); }};
      case Kind::reduce:
        if (!is_root) return {count, true, nothing};
        return {count, true, [this](size_t begin, size_t end) { reduce_range(begin, begin, end, begin); }};
      case Kind::reduce_scatter:
        return {count * ranks, true, [=, this_ = this](size_t begin, size_t end) {
                  const size_t first = std::max(begin, rank * count), last = std::min(end, (rank + 1) * count);
                  if (first < last) this_->reduce_range(begin, first, last, first - rank * count);
                }};
      case Kind::broadcast:
        return {count, is_root, [this](size_t begin, size_t end) { copy_range(operation_.peer, begin, begin, end, begin); }};
      case Kind::gather:
        if (!is_root) return {count, true, nothing};
        [[fallthrough]];
      case Kind::all_gather:
        return {count, true, [=, this_ = this](size_t begin, size_t end) {
                  for (size_t source = 0; source < ranks; ++source)
                    this_->copy_range(static_cast<int>(source), begin, begin, end, source * count + begin);
                }};
      case Kind::scatter:
        return {count * ranks, is_root, [=, this_ = this](size_t begin, size_t end) {
                  const size_t first = std::max(begin, rank * count), last = std::min(end, (rank + 1) * count);
                  if (first < last) this_->copy_range(this_->operation_.peer, begin, first, last, first - rank * count);
                }};
      default:  // all to all
        return {count * ranks, true, [=, this_ = this](size_t begin, size_t end) {
                  const size_t first = std::max(begin, rank * count), last = std::min(end, (rank + 1) * count);
                  for (size_t source = 0; source < ranks && first < last; ++source)
                    this_->copy_range(static_cast<int>(source), begin, first, last, source * count + first - rank * count);
                }};
    }
  }

  Status run() const {
    const Steps plan = steps();
    const size_t bytes = operation_.count * element_;
    if (const Status status = communicator_.agree(operation_.kind, bytes, operation_.peer); status != SUCCESS) return status;
    // Also where nothing is copied, no rank goes on before all have seen that they called the same.
    if (!is_moved(operation_.type, bytes)) return communicator_.barrier();
    const size_t step = SLOT_BYTES / element_;
    for (size_t begin = 0; begin < plan.elements; begin += step) {
      const size_t end = std::min(begin + step, plan.elements);
      if (plan.contributes) {
        std::memcpy(communicator_.segment().slot(communicator_.rank()),
                    static_cast<const char*>(operation_.input) + begin * element_, (end - begin) * element_);
      }
      if (const Status status = communicator_.barrier(); status != SUCCESS) return status;
      plan.receive(begin, end);
      if (const Status status = communicator_.barrier(); status != SUCCESS) return status;
    }
    return plan.elements > 0 ? SUCCESS : communicator_.barrier();
  }

 private:
  // The slots hold elements from `held`; those from `first` to `last` go to `place` of the output.
  void copy_range(int source, size_t held, size_t first, size_t last, size_t place) const {
    std::memcpy(output(place), communicator_.segment().slot(source) + (first - held) * element_, (last - first) * element_);
  }

  void reduce_range(size_t held, size_t first, size_t last, size_t place) const {
    std::vector<const char*> inputs;
    for (int rank = 0; rank < communicator_.ranks(); ++rank)
      inputs.push_back(communicator_.segment().slot(rank) + (first - held) * element_);
    reduce(inputs, last - first, operation_.type, operation_.reduction, output(place));
  }

  char* output(size_t element) const { return static_cast<char*>(operation_.output) + element * element_; }

  Communicator& communicator_;
  const Operation& operation_;
  size_t element_;
};

}  // namespace

bool is_moved(int type, size_t bytes) { return simulator_copies(is_whole_number(type) ? bytes / 4 : bytes); }

Status run_collective(Communicator& communicator, const Operation& operation) { return Collective(communicator, operation).run(); }

}  // namespace simulator::nccl
