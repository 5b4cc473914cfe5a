#include "operator_views.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "interface.h"
#include "operators.h"

namespace simulator {

namespace {

thread_local uint32_t views = 0;
thread_local int view_depth = 0;

enum class Kind { none, view, read, collective };

struct Nested {
  explicit Nested(int& depth) : depth_(depth) { depth_++; }
  ~Nested() { depth_--; }
  int& depth_;
};

// A kernel that calls the genuine one and tells what has been called.
class Watching final : public c10::OperatorKernel {
 public:
  using Kernel = std::decay_t<decltype(std::declval<const c10::OperatorHandle&>().getComputedKernelForDispatchKey(
      c10::DispatchKey::CUDA))>;

  Watching(const c10::OperatorHandle& handle, Kind kind)
      : kind_(kind), genuine_(handle.getComputedKernelForDispatchKey(c10::DispatchKey::CUDA)) {}

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    // Views that a kernel or another view creates are part of its own time.
    const bool is_outermost = *simulator_depth() == 0 && view_depth == 0;
    if (!is_outermost || kind_ != Kind::collective) {
      if (is_outermost) views++;
      const Nested nested(view_depth);
      genuine_.callBoxed(handle, keys, stack);
      if (is_outermost && kind_ == Kind::read) host_waits();
      return;
    }
    const size_t count = handle.schema().arguments().size();
    const std::vector<c10::IValue> arguments(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
    genuine_.callBoxed(handle, keys, stack);
    record_operator(handle, arguments, {});
  }

 private:
  Kind kind_;
  Kernel genuine_;
};

bool returns_views(const c10::FunctionSchema& schema) {
  for (const c10::Argument& result : schema.returns()) {
    if (result.alias_info() == nullptr || result.alias_info()->isWrite()) return false;
  }
  return !schema.returns().empty();
}

Kind kind_of(const c10::OperatorHandle& handle) {
  const std::string& name = handle.operator_name().name;
  const bool has_kernel = handle.hasKernelForDispatchKey(c10::DispatchKey::CUDA);
  if (name.rfind("c10d::", 0) == 0) return has_kernel ? Kind::collective : Kind::none;
  if (name == "aten::_local_scalar_dense") return has_kernel ? Kind::read : Kind::none;
  if (name.rfind("aten::", 0) != 0 || !returns_views(handle.schema())) return Kind::none;
  // A composite operator is made of others that are counted, and autograd would no longer decompose it if it had a kernel.
  const bool is_composite = handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  const bool is_explicit = handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
  return has_kernel || (is_explicit && !is_composite) ? Kind::view : Kind::none;
}

class Silent final : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

}  // namespace

void watch_views_and_collectives() {
  // Torch warns of each kernel that is replaced.
  Silent silent;
  c10::WarningUtils::WarningHandlerGuard guard(&silent);
  auto& dispatcher = c10::Dispatcher::singleton();
  static auto* const registrations = new std::vector<c10::RegistrationHandleRAII>;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto handle = dispatcher.findSchema(name);
    if (!handle) continue;
    const Kind kind = kind_of(*handle);
    if (kind == Kind::none) continue;
    registrations->push_back(dispatcher.registerImpl(
        name, c10::DispatchKey::CUDA,
        c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Watching>(*handle, kind)), std::nullopt, nullptr,
        "shoestring: counts views"));
  }
}

uint16_t take_views() {
  const uint32_t taken = std::exchange(views, 0);
  return static_cast<uint16_t>(taken < 65535 ? taken : 65535);
}

}  // namespace simulator
