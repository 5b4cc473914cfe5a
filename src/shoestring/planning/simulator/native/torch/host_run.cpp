#include "torch/host_run.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/util/Exception.h>

#include <mutex>

#include "torch/tensors.h"

namespace simulator {
namespace {

uint64_t mixed(uint64_t a, uint64_t b) {  // the finalizer of splitmix64
  a += 0x9e3779b97f4a7c15ull * (b + 1);
  a = (a ^ (a >> 30)) * 0xbf58476d1ce4e5b9ull;
  a = (a ^ (a >> 27)) * 0x94d049bb133111ebull;
  return a ^ (a >> 31);
}

// The host's default generator with another seed, and with its own state again afterwards.
class SeededHost {
 public:
  explicit SeededHost(uint64_t seed) : lock_(mutex()), generator_(at::detail::getDefaultCPUGenerator()) {
    state_ = generator_.get_state();
    generator_.set_current_seed(seed);
  }
  ~SeededHost() { generator_.set_state(state_); }

 private:
  static std::recursive_mutex& mutex() {
    static auto* const only = new std::recursive_mutex;
    return *only;
  }
  std::lock_guard<std::recursive_mutex> lock_;
  at::Generator generator_;
  at::Tensor state_;
};

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

bool is_reduced(const at::Tensor& tensor) {
  return tensor.defined() && (tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16);
}

// Arguments for the host. With `wide`, half precision becomes float32; what an operator writes is then copied back.
struct HostArguments {
  Stack stack;
  std::vector<std::pair<at::Tensor, at::Tensor>> widened_writes;

  HostArguments(const OperatorTraits& traits, const Stack& arguments, bool wide) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].isGenerator()) {
        stack.emplace_back(at::detail::getDefaultCPUGenerator());
      } else if (!wide) {
        stack.push_back(arguments[i]);
      } else {
        stack.push_back(replace_tensors(arguments[i], [&](const at::Tensor& tensor) {
          if (!is_reduced(tensor)) return tensor;
          at::Tensor widened = tensor.to(at::kFloat);
          if (traits.writes[i]) widened_writes.emplace_back(tensor, widened);
          return widened;
        }));
      }
    }
  }
};

// Whether the failure is the program's (wrong values) and not a limit of the host's kernels.
bool is_programs_failure(const c10::Error& error, const std::string& message) {
  if (dynamic_cast<const c10::IndexError*>(&error) != nullptr || dynamic_cast<const c10::LinAlgError*>(&error) != nullptr ||
      dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) {
    return true;
  }
  for (const char* part : {"out of range", "out of bounds", "probability tensor", "invalid multinomial", "Target ", "must be non-negative"}) {
    if (contains(message, part)) return true;
  }
  return false;
}

void copy_results(const OperatorTraits& traits, const Stack& computed, Stack& results) {
  for (size_t i = 0; i < results.size() && i < computed.size(); ++i) {
    if (traits.result_is_argument[i]) continue;  // it was written in place
    std::vector<at::Tensor> from, to;
    for_each_tensor(computed[i], [&](const at::Tensor& tensor) { from.push_back(tensor); });
    for_each_tensor(results[i], [&](const at::Tensor& tensor) { to.push_back(tensor); });
    if (to.empty() && from.empty()) results[i] = computed[i];  // a number
    for (size_t j = 0; j < from.size() && j < to.size(); ++j) {
      if (!from[j].defined() || !to[j].defined() || to[j].numel() == 0) continue;
      if (from[j].sizes() == to[j].sizes()) {
        to[j].copy_(from[j]);
      } else if (from[j].numel() == to[j].numel()) {
        to[j].copy_(from[j].reshape(to[j].sizes()));
      }
    }
  }
}

}  // namespace

BelowDispatch::BelowDispatch()
    : keys_(c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset |
            c10::DispatchKeySet({c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot})) {}

uint64_t seed_of(const at::Generator& generator, uint64_t salt) {
  at::Generator copy = generator;
  const std::lock_guard<std::mutex> lock(copy.mutex());
  return mixed(mixed(copy.current_seed(), copy.get_offset()), salt);
}

std::function<uint64_t()> seed_at_replay(const at::Generator& generator, uint64_t order) {
  at::Generator copy = generator;
  try {
    const std::lock_guard<std::mutex> lock(copy.mutex());
    // Drawing nothing tells where PyTorch puts the generator's seed and offset before a replay, and how much of the graph's
    // random numbers the operators before this one take.
    const at::PhiloxCudaState state = at::check_generator<at::CUDAGeneratorImpl>(copy)->philox_cuda_state(0);
    if (state.captured_) {
      return [state] { return mixed(mixed(*state.seed_.ptr, *state.offset_.ptr + state.offset_intragraph_), 0); };
    }
  } catch (const c10::Error&) {  // the generator is not registered with the graph
  }
  return [copy, order] { return seed_of(copy, order); };
}

std::optional<std::string> run_on_host(const c10::OperatorHandle& handle, const OperatorTraits& traits, const Stack& arguments,
                                       Stack& results, bool replace, std::optional<uint64_t> seed) {
  std::optional<SeededHost> seeded;
  std::string reason;
  for (const bool wide : {false, true}) {
    seeded.reset();
    if (seed) seeded.emplace(*seed);
    HostArguments host(traits, arguments, wide);
    try {
      if (traits.reference != nullptr) {
        traits.reference(host.stack, results);
      } else {
        handle.callBoxed(host.stack);
      }
    } catch (const c10::Error& error) {
      reason = error.what_without_backtrace();
      if (is_programs_failure(error, reason)) throw;
      if (contains(reason, "Could not run")) return reason;
      continue;
    }
    for (auto& [narrow, widened] : host.widened_writes) narrow.copy_(widened);
    if (replace) {
      results = host.stack;
    } else {
      copy_results(traits, host.stack, results);
    }
    return std::nullopt;
  }
  return reason;
}

}  // namespace simulator
