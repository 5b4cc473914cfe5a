#include "torch/values.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "configuration.h"
#include "interface.h"
#include "torch/assumed.h"
#include "torch/assumed_indices.h"
#include "torch/host_run.h"
#include "torch/notes.h"
#include "torch/operator_traits.h"
#include "torch/operators.h"
#include "torch/statistics.h"
#include "torch/tensors.h"
#include "torch/value_limits.h"

namespace simulator {
namespace {

using c10::IValue;

// Whether a shape depended on assumed values: then tensors without elements count as assumed.
std::atomic<bool> shapes_are_assumed{false};

// What can be seen of a call before it is made.
struct Call {
  std::vector<IValue> arguments;
  bool too_large = false;         // to be computed
  bool too_large_for_copy = false;  // also where no values are asked for
  int device = -1;
  bool assumed = false;  // an argument that is read holds an assumed value
  bool computable = true;
  at::Generator generator;

  Call(const OperatorTraits& traits, const Stack& stack) : arguments(stack.end() - traits.writes.size(), stack.end()) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      const IValue& argument = arguments[i];
      for_each_tensor(argument, [&](const at::Tensor& tensor) { see(tensor, !traits.is_output[i] && !(traits.overwrites && i == 0)); });
      if (argument.isGenerator()) generator = argument.toGenerator();
      if (argument.isDevice() && argument.toDevice().is_cuda() && device < 0) device = argument.toDevice().index();
    }
    if (device < 0) device = c10::impl::getDeviceGuardImpl(at::kCUDA)->getDevice().index();
    if (traits.random && !generator.defined()) generator = at::globalContext().defaultGenerator(at::Device(at::kCUDA, device));
  }

  void see(const at::Tensor& tensor, bool is_read) {
    if (is_device_tensor(tensor)) {
      const size_t limit = largest_computed_bytes(tensor);
      too_large = too_large || tensor.nbytes() > limit;
      too_large_for_copy = too_large_for_copy || tensor.nbytes() > std::max(limit, configuration().value_bytes);
      device = tensor.get_device();
      const bool empty_by_assumption = tensor.numel() == 0 && shapes_are_assumed;
      assumed = assumed || (is_read && (empty_by_assumption || is_assumed(tensor)));
    } else if (tensor.defined() && tensor.is_cuda()) {
      computable = false;  // sparse and nested tensors
    }
  }
};

bool share_memory(const at::Tensor& tensor, const std::vector<IValue>& arguments) {
  if (!tensor.has_storage()) return false;
  const void* const memory = tensor.storage().data();
  bool shared = false;
  for (const IValue& argument : arguments) {
    for_each_tensor(argument, [&](const at::Tensor& other) {
      shared = shared || (is_device_tensor(other) && other.has_storage() && other.storage().data() == memory);
    });
  }
  return shared;
}

class DepthGuard {
 public:
  explicit DepthGuard(int& depth) : depth_(depth) { ++depth_; }
  ~DepthGuard() { --depth_; }

 private:
  int& depth_;
};

class ValueKernel final : public c10::OperatorKernel {
 public:
  explicit ValueKernel(const c10::OperatorHandle& handle)
      : handle_(handle), genuine_(handle.getComputedKernelForDispatchKey(c10::DispatchKey::CUDA)), traits_(handle) {}

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
    int& depth = *simulator_depth();
    const bool nested = depth > 0;
    if (traits_.only_views || (nested && !traits_.without_genuine && !traits_.keeps_workspaces)) {
      genuine_.callBoxed(handle, keys, stack);
      return;
    }
    const Call call(traits_, *stack);
    void* const stream = c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(call.device)).stream();
    const bool captured = simulator_is_capturing(stream);
    note_reads(call);

    const std::optional<std::string> refusal = reason_against(call);
    std::optional<uint64_t> seed;
    std::function<uint64_t()> replayed_seed;
    if (traits_.random && captured) replayed_seed = seed_at_replay(call.generator, simulator_capture_order(stream));
    if (traits_.random && !captured) seed = seed_of(call.generator);  // the genuine kernel advances the generator
    std::vector<at::Tensor> saved;
    if (!refusal && !captured) saved = save_written(call);

    const bool has_results = run_genuine(handle, keys, stack, depth);
    if (!nested) {
      poll_statistics();
      if (configuration().record_operators) {
        record_operator(handle, call.arguments, has_results ? results_of(*stack) : std::vector<IValue>());
      }
    }
    if (refusal) {
      assume(call, stack, *refusal, captured);
    } else if (has_results && !is_always_computed(traits_.name) && !fits(results_of(*stack))) {
      assume(call, stack, why_too_large(), captured);
    } else if (captured) {
      compute_in_graph(call, stack, stream, replayed_seed);
    } else {
      compute(call, stack, has_results, saved, seed);
    }
  }

 private:
  std::vector<IValue> results_of(const Stack& stack) const {
    return {stack.end() - traits_.result_is_argument.size(), stack.end()};
  }

  bool fits(const std::vector<IValue>& results) const {
    bool all = true;
    for (const IValue& result : results) {
      for_each_tensor(result, [&](const at::Tensor& tensor) {
        all = all && !(is_device_tensor(tensor) && tensor.nbytes() > largest_computed_bytes(tensor));
      });
    }
    return all;
  }

  void note_reads(const Call& call) const {
    if (!call.assumed) return;
    const bool to_host = traits_.name == "aten::copy_" && !is_device_tensor(call.arguments[0].toTensor()) &&
                         !call.too_large_for_copy;
    if (traits_.shape_from_values) shapes_are_assumed = true;
    if (traits_.reads || traits_.shape_from_values || to_host) note_read(traits_.name);
  }

  // Why values are not computed, known before the genuine kernel runs.
  std::optional<std::string> reason_against(const Call& call) const {
    if (!call.computable) return "tensors that are not strided are not computed";
    if (traits_.without_genuine) return std::nullopt;  // there are no results otherwise
    if (is_always_computed(traits_.name) ? call.too_large_for_copy : call.too_large) return why_too_large();
    if (traits_.checks_infinities && call.assumed) return "derived from assumed values";
    return std::nullopt;
  }

  // Returns whether there are results; they or nothing replace the arguments on the stack.
  bool run_genuine(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack, int& depth) const {
    const size_t below = stack->size() - traits_.writes.size();
    if (traits_.without_genuine) {
      stack->resize(below);
      return false;
    }
    const DepthGuard guard(depth);
    if (!traits_.keeps_workspaces) {
      genuine_.callBoxed(handle, keys, stack);
      return true;
    }
    try {
      genuine_.callBoxed(handle, keys, stack);
      return true;
    } catch (const c10::OutOfMemoryError&) {
      throw;
    } catch (const c10::Error&) {  // its library has nothing to answer, or the kernel read what was not computed
      stack->resize(below);
      return false;
    }
  }

  // Copies of what the operator writes: a genuine kernel may copy over what the host has still to read. A list may have
  // tensors in host memory as well, which the genuine kernel computes itself.
  std::vector<at::Tensor> save_written(const Call& call) const {
    const BelowDispatch below;
    std::vector<at::Tensor> saved;
    for (size_t i = 0; i < call.arguments.size(); ++i) {
      if (!traits_.writes[i]) continue;
      for_each_tensor(call.arguments[i], [&](const at::Tensor& tensor) {
        const bool is_changed_twice = is_device_tensor(tensor) || call.arguments[i].isList();
        saved.push_back(is_changed_twice ? on_host(tensor).clone() : at::Tensor());
      });
    }
    return saved;
  }

  void restore_written(const Call& call, const std::vector<at::Tensor>& saved) const {
    size_t next = 0;
    for (size_t i = 0; i < call.arguments.size(); ++i) {
      if (!traits_.writes[i]) continue;
      for_each_tensor(call.arguments[i], [&](const at::Tensor& tensor) {
        const at::Tensor& before = saved[next++];
        if (before.defined() && before.sizes() == tensor.sizes()) on_host(tensor).copy_(before);
      });
    }
  }

  Stack host_arguments(const Call& call) const {
    Stack host;
    for (const IValue& argument : call.arguments) host.push_back(argument.isGenerator() ? argument : replace_tensors(argument, on_host));
    return host;
  }

  Stack host_results(const Stack& stack) const {
    Stack host;
    for (const IValue& result : results_of(stack)) host.push_back(replace_tensors(result, on_host));
    return host;
  }

  void compute(const Call& call, Stack* stack, bool has_results, const std::vector<at::Tensor>& saved, std::optional<uint64_t> seed) {
    const BelowDispatch below;
    restore_written(call, saved);
    const Stack arguments = host_arguments(call);
    Stack results;
    if (has_results) results = host_results(*stack);
    std::optional<std::string> failure;
    try {
      failure = run_on_host(handle_, traits_, arguments, results, !has_results, seed);
    } catch (const c10::Error& error) {
      // Indices and probabilities that were assumed may be wrong for reasons that are not the program's.
      if (!call.assumed || !has_results) throw;
      failure = error.what_without_backtrace();
    }
    if (failure && !has_results) TORCH_CHECK(false, traits_.name, " is not simulated: ", *failure);
    if (!has_results) push_results(call, stack, results);
    if (failure) {
      assume(call, stack, *failure, false);
      return;
    }
    for (size_t i = 0; has_results && i < results.size(); ++i) {
      IValue& result = (*stack)[stack->size() - results.size() + i];
      if (result.isBool() || result.isInt() || result.isDouble()) result = results[i];
    }
    mark_outcome(call, *stack);
  }

  // A graph keeps host tensors over the memory, and so no memory of the device, as a genuine one.
  void compute_in_graph(const Call& call, Stack* stack, void* stream, const std::function<uint64_t()>& replayed_seed) {
    const BelowDispatch below;
    const Stack arguments = host_arguments(call);
    const Stack results = host_results(*stack);
    simulator_capture(stream, new std::function<void()>([this, arguments, results, replayed_seed] {
      const BelowDispatch replayed;
      Stack written = results;
      std::optional<uint64_t> seed;
      if (replayed_seed) seed = replayed_seed();
      run_on_host(handle_, traits_, arguments, written, false, seed);
    }));
    mark_outcome(call, *stack, false);
  }

  // Results that the host made become the device's.
  void push_results(const Call& call, Stack* stack, const Stack& results) const {
    const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(call.device));
    for (const IValue& result : results) {
      stack->push_back(replace_tensors(result, [&](const at::Tensor& tensor) {
        if (!tensor.defined() || tensor.layout() != at::kStrided) return tensor;
        at::Tensor placed = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(device));
        on_host(placed).copy_(tensor);
        return placed;
      }));
    }
  }

  template <typename Visit>
  void for_each_written(const Call& call, const Stack& stack, Visit visit) const {
    for (size_t i = 0; i < call.arguments.size(); ++i) {
      if (traits_.writes[i]) for_each_tensor(call.arguments[i], [&](const at::Tensor& tensor) { visit(tensor, traits_.is_output[i] || (traits_.overwrites && i == 0)); });
    }
    const std::vector<IValue> results = results_of(stack);
    for (size_t i = 0; i < results.size(); ++i) {
      if (traits_.result_is_argument[i]) continue;
      for_each_tensor(results[i], [&](const at::Tensor& tensor) { visit(tensor, !share_memory(tensor, call.arguments)); });
    }
  }

  void mark_outcome(const Call& call, const Stack& stack, bool done = true) const {
    for_each_written(call, stack, [&](const at::Tensor& tensor, bool) {
      if (!call.assumed) return mark_computed(tensor);
      if (done) make_finite(tensor);
      mark_assumed(tensor);
    });
    if (call.assumed && done) spread_choices(traits_.name, call.arguments, results_of(stack));
  }

  // Gives results plausible values instead of computed ones. `captured`: what exists must not change now.
  void assume(const Call& call, Stack* stack, const std::string& reason, bool captured) const {
    const BelowDispatch below;
    const bool zeros = traits_.name == "aten::zero_" || (traits_.name == "aten::fill_.Scalar" && call.arguments[1].toScalar().equal(0));
    for_each_written(call, *stack, [&](const at::Tensor& tensor, bool fresh) {
      if (fresh && !captured) fill_plausible(tensor, traits_.name);
      if (zeros) {
        mark_computed(tensor);
      } else {
        mark_assumed(tensor);
      }
    });
    if (!captured) assume_indices(traits_.name, call.arguments, results_of(*stack));
    if (traits_.name == "aten::copy_") clear_converted(call);
    if (traits_.name == "aten::equal") stack->back() = true;
    if (!zeros && !traits_.reads) note_assumed(traits_.name, reason);
  }

  // A copy to the host that converts goes through memory of the device in which nothing was computed.
  void clear_converted(const Call& call) const {
    const at::Tensor to = call.arguments[0].toTensor();
    const at::Tensor from = call.arguments[1].toTensor();
    if (is_device_tensor(to) || !is_device_tensor(from)) return;
    if (to.dtype() != from.dtype() || !to.is_contiguous() || !from.is_contiguous()) to.zero_();
  }

  const c10::OperatorHandle handle_;
  const decltype(std::declval<c10::OperatorHandle>().getComputedKernelForDispatchKey(c10::DispatchKey::CUDA)) genuine_;
  const OperatorTraits traits_;
};

// An operator that reads one value: the genuine kernel copies it from the device.
class ReadKernel final : public c10::OperatorKernel {
 public:
  explicit ReadKernel(const c10::OperatorHandle& handle)
      : genuine_(handle.getComputedKernelForDispatchKey(c10::DispatchKey::CUDA)), name_(toString(handle.operator_name())) {}

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
    if (*simulator_depth() == 0 && is_assumed(stack->back().toTensor())) note_read(name_);
    genuine_.callBoxed(handle, keys, stack);
  }

 private:
  const decltype(std::declval<c10::OperatorHandle>().getComputedKernelForDispatchKey(c10::DispatchKey::CUDA)) genuine_;
  const std::string name_;
};

c10::KernelFunction kernel_for(const c10::OperatorHandle& handle, const std::string& name) {
  if (name == "aten::_local_scalar_dense") return c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<ReadKernel>(handle));
  return c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<ValueKernel>(handle));
}

// The dispatcher warns of every kernel that is put over another.
class NoWarnings final : public c10::WarningHandler {
 public:
  NoWarnings() : before_(c10::WarningUtils::get_warning_handler()) { c10::WarningUtils::set_warning_handler(this); }
  ~NoWarnings() override { c10::WarningUtils::set_warning_handler(before_); }
  void process(const c10::Warning&) override {}

 private:
  c10::WarningHandler* before_;
};

}  // namespace

void start_values() {
  const NoWarnings quiet;
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  static auto* const registrations = new std::vector<c10::RegistrationHandleRAII>;  // never destroyed: for the whole process
  for (const c10::OperatorName& operator_name : dispatcher.getAllOpNames()) {
    const std::string name = toString(operator_name);
    if (name.rfind("aten::", 0) != 0 || is_left_alone(name)) continue;
    const std::optional<c10::OperatorHandle> handle = dispatcher.findSchema(operator_name);
    if (!handle) continue;
    // copy_ has a kernel for all devices.
    if (name != "aten::copy_" && !handle->hasKernelForDispatchKey(c10::DispatchKey::CUDA)) continue;
    registrations->push_back(dispatcher.registerImpl(operator_name, c10::DispatchKey::CUDA, kernel_for(*handle, name), std::nullopt,
                                                     nullptr, "simulated values"));
  }
}

}  // namespace simulator
