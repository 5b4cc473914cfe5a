#include "operators.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <torch/csrc/autograd/graph_task.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <sstream>
#include <string>

#include "configuration.h"
#include "interface.h"
#include "operator_log.h"
#include "operator_views.h"

namespace {

using c10::IValue;
using simulator::OperatorLog;

std::mutex lock;
OperatorLog* the_log = nullptr;  // never destroyed: threads may run while the process exits
std::atomic<int> step_of_script{simulator::forward_step};

// A list with more different tensors than this is cut off; only the bytes of the rest matter.
constexpr size_t longest_list = 64;

// A forked process shares the file and the mapped counts of its parent, and cannot use CUDA: it records nothing. The lock is
// held during the fork, so that the child does not get it from a thread that it lacks.
void before_fork() { lock.lock(); }
void in_parent() { lock.unlock(); }
void in_child() {
  the_log = nullptr;
  lock.unlock();
}

// The log, or nullptr if nothing is recorded. The lock has to be held.
OperatorLog* log() {
  static const bool is_opened = [] {
    const char* folder = simulator_folder();
    if (folder == nullptr || !simulator::configuration().record_operators) return false;
    auto* created = new OperatorLog(std::string(folder) + "/operators." + std::to_string(getpid()));
    if (!created->is_open()) return false;
    the_log = created;
    pthread_atfork(before_fork, in_parent, in_child);
    std::atexit([] {
      const std::lock_guard<std::mutex> guard(lock);
      if (the_log != nullptr) the_log->close_units();
    });
    return true;
  }();
  return is_opened ? the_log : nullptr;
}

bool is_first_thread() {
  thread_local const bool is_first = syscall(SYS_gettid) == getpid();
  return is_first;
}

simulator::Step current_step() {
  // A task of autograd's engine runs in this thread. It records gradients only while a checkpointed block is recomputed.
  if (torch::autograd::get_current_graph_task_id() != -1) {
    return at::GradMode::is_enabled() ? simulator::recomputation_step : simulator::backward_step;
  }
  return static_cast<simulator::Step>(step_of_script.load(std::memory_order_relaxed));
}

// Integers change the amount of work only of these; elsewhere they are numbers such as lengths, which the shapes tell.
bool integers_matter(const std::string& name) {
  return name.find("conv") != std::string::npos || name.find("rnn") != std::string::npos ||
         name.find("attention") != std::string::npos;
}

// Calls visit(tensor) with each tensor of a value, also in lists of lists.
template <typename Visit>
void visit_tensors(const IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isList()) {
    for (const IValue& element : value.toListRef()) visit_tensors(element, visit);
  }
}

bool is_described_by_strides(const at::Tensor& tensor) {
  // Only the memory format of images matters for the time.
  return tensor.layout() == at::kStrided && tensor.dim() == 4 && !tensor.is_contiguous();
}

uint64_t tensor_hash(uint64_t hash, const at::Tensor& tensor) {
  using simulator::mix_hash;
  if (!tensor.defined()) return mix_hash(hash, 0x11);
  hash = mix_hash(hash, (static_cast<uint64_t>(tensor.scalar_type()) << 8) | (tensor.is_cuda() ? 2 : 1));
  hash = mix_hash(hash, static_cast<uint64_t>(tensor.dim()) + 0x100);
  for (const int64_t size : tensor.sizes()) hash = mix_hash(hash, static_cast<uint64_t>(size));
  if (is_described_by_strides(tensor)) {
    for (const int64_t stride : tensor.strides()) hash = mix_hash(hash, static_cast<uint64_t>(stride) + 0x200);
  }
  return hash;
}

uint64_t value_hash(uint64_t hash, const IValue& value, bool with_integers) {
  using simulator::mix_hash;
  if (value.isTensor()) return tensor_hash(hash, value.toTensor());
  if (value.isBool()) return mix_hash(hash, value.toBool() ? 0x21 : 0x22);
  if (value.isInt() && with_integers) return mix_hash(hash, static_cast<uint64_t>(value.toInt()) + 0x300);
  if (!value.isList()) return mix_hash(hash, 0x31);
  hash = mix_hash(hash, 0x32);
  for (const IValue& element : value.toListRef()) hash = value_hash(hash, element, with_integers);
  return mix_hash(hash, 0x33);
}

template <typename Numbers>
void write_numbers(std::ostream& out, const Numbers& numbers) {
  out << '[';
  bool is_first = true;
  for (const auto number : numbers) {
    if (!is_first) out << ',';
    out << number;
    is_first = false;
  }
  out << ']';
}

void write_tensor(std::ostream& out, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    out << "null";
    return;
  }
  out << "[\"" << c10::toString(tensor.scalar_type()) << "\",";
  write_numbers(out, tensor.sizes());
  if (!tensor.is_cuda()) {
    out << ",null,\"cpu\"";
  } else if (is_described_by_strides(tensor)) {
    out << ',';
    write_numbers(out, tensor.strides());
  }
  out << ']';
}

void write_tensors(std::ostream& out, const std::vector<at::Tensor>& tensors) {
  size_t written = 0, left_out = 0, bytes = 0;
  out << "{\"list\":[";
  for (size_t first = 0, last; first < tensors.size(); first = last) {
    for (last = first + 1; last < tensors.size(); last++) {
      if (tensor_hash(0, tensors[last]) != tensor_hash(0, tensors[first])) break;
    }
    if (written == longest_list) {
      left_out += last - first;
      if (tensors[first].defined() && tensors[first].is_cuda()) {
        bytes += (last - first) * tensors[first].numel() * tensors[first].element_size();
      }
      continue;
    }
    if (written++ > 0) out << ',';
    out << '[';
    write_tensor(out, tensors[first]);
    out << ',' << last - first << ']';
  }
  out << ']';
  if (left_out > 0) out << ",\"tensors\":" << left_out << ",\"bytes\":" << bytes;
  out << '}';
}

void write_value(std::ostream& out, const IValue& value, bool with_integers) {
  if (value.isTensor()) {
    write_tensor(out, value.toTensor());
  } else if (value.isBool()) {
    out << (value.toBool() ? "true" : "false");
  } else if (value.isInt() && with_integers) {
    out << value.toInt();
  } else if (value.isIntList() && with_integers) {
    out << "{\"ints\":";
    write_numbers(out, value.toIntVector());
    out << '}';
  } else if (value.isBoolList()) {
    out << "{\"bools\":";
    write_numbers(out, value.toBoolList().vec());
    out << '}';
  } else if (value.isList()) {
    std::vector<at::Tensor> tensors;
    visit_tensors(value, [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
    if (tensors.empty()) {
      out << "null";
    } else {
      write_tensors(out, tensors);
    }
  } else {
    out << "null";
  }
}

std::string operator_json(const c10::OperatorHandle& handle) {
  const c10::FunctionSchema& schema = handle.schema();
  std::ostringstream names, written, aliases, out;
  for (size_t index = 0; index < schema.arguments().size(); index++) {
    const c10::Argument& argument = schema.arguments()[index];
    names << (index > 0 ? ",\"" : "\"") << argument.name() << '"';
    if (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) {
      written << (written.tellp() > 0 ? "," : "") << index;
    }
  }
  for (size_t index = 0; index < schema.returns().size(); index++) {
    if (schema.returns()[index].alias_info() != nullptr) aliases << (aliases.tellp() > 0 ? "," : "") << index;
  }
  out << "{\"name\":\"" << toString(handle.operator_name()) << "\",\"arguments\":[" << names.str() << "],\"written\":["
      << written.str() << "],\"aliases\":[" << aliases.str() << "]}";
  return out.str();
}

std::string signature_json(uint32_t number, const std::vector<IValue>& arguments, const std::vector<IValue>& results,
                           bool with_integers) {
  std::ostringstream out;
  out << '[' << number;
  for (const auto* values : {&arguments, &results}) {
    out << ",[";
    for (size_t index = 0; index < values->size(); index++) {
      if (index > 0) out << ',';
      write_value(out, (*values)[index], with_integers);
    }
    out << ']';
  }
  out << ']';
  return out.str();
}

// The device that the operator runs on, and whether it copies from there to the host, which waits for it.
struct Place {
  uint8_t device = 0;
  bool reads_to_host = false;
};

Place place_of(const c10::OperatorHandle& handle, const std::vector<IValue>& arguments, const std::vector<IValue>& results) {
  Place place;
  bool is_found = false;
  const auto look = [&](const at::Tensor& tensor) {
    if (is_found || !tensor.defined() || !tensor.is_cuda()) return;
    place.device = static_cast<uint8_t>(tensor.get_device());
    is_found = true;
  };
  for (const IValue& value : arguments) visit_tensors(value, look);
  for (const IValue& value : results) visit_tensors(value, look);
  const bool is_copy = handle.operator_name().name == "aten::copy_" && arguments.size() == 3;
  if (is_copy && arguments[0].isTensor() && arguments[1].isTensor() && arguments[2].isBool()) {
    place.reads_to_host = arguments[0].toTensor().is_cpu() && arguments[1].toTensor().is_cuda() && !arguments[2].toBool();
  }
  return place;
}

void describe(OperatorLog& log, const c10::OperatorHandle& handle, const std::vector<IValue>& arguments,
              const std::vector<IValue>& results, uint8_t device) {
  const void* identity = &handle.schema();
  uint32_t number = log.operator_number(identity);
  if (number == OperatorLog::unknown) number = log.add_operator(identity, operator_json(handle));
  const bool with_integers = integers_matter(handle.operator_name().name);
  uint64_t hash = simulator::mix_hash(0, number);
  for (const IValue& value : arguments) hash = value_hash(hash, value, with_integers);
  for (const IValue& value : results) hash = value_hash(hash, value, with_integers);
  uint32_t signature = log.signature_number(hash);
  if (signature == OperatorLog::unknown) {
    signature = log.add_signature(hash, signature_json(number, arguments, results, with_integers));
  }
  log.add({signature, simulator::take_views(), static_cast<uint8_t>(current_step()), device, !is_first_thread()});
}

}  // namespace

void operators_start() {
  static std::once_flag once;
  std::call_once(once, [] {
    {
      const std::lock_guard<std::mutex> guard(lock);
      if (log() == nullptr) return;
    }
    simulator::watch_views_and_collectives();
  });
}

void record_operator(const c10::OperatorHandle& handle, const std::vector<IValue>& arguments,
                     const std::vector<IValue>& results) {
  try {
    operators_start();
    const std::lock_guard<std::mutex> guard(lock);
    OperatorLog* const current = log();
    if (current == nullptr) return;
    const Place place = place_of(handle, arguments, results);
    if (current->is_sampling()) {
      describe(*current, handle, arguments, results, place.device);
    } else {
      simulator::take_views();
      current->count();
    }
    if (place.reads_to_host) current->host_waited();
  } catch (const std::exception&) {
    // A value of a kind that is not foreseen: the script goes on, and this call is missing.
  }
}

void simulator::host_waits() {
  const std::lock_guard<std::mutex> guard(lock);
  if (OperatorLog* const current = log()) current->host_waited();
}

void operators_phase(int phase) {
  const std::lock_guard<std::mutex> guard(lock);
  if (OperatorLog* const current = log()) current->set_phase(phase);
}

void operators_update(int64_t update) {
  const std::lock_guard<std::mutex> guard(lock);
  if (OperatorLog* const current = log()) current->end_update(update);
}

// What the script does outside of autograd's backward: 0 forward, 2 the step of an optimizer.
EXPORT void simulator_set_step(int step) {
  step_of_script.store(step >= 0 && step <= 2 ? step : 0, std::memory_order_relaxed);
}
