// Runs an operator on host tensors.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <ATen/record_function.h>

#include <functional>
#include <optional>
#include <string>

#include "torch/operator_traits.h"

namespace simulator {

// Below autograd, modes, autocast and profilers: what the simulator does is invisible to the program.
class BelowDispatch {
 public:
  BelowDispatch();

 private:
  c10::impl::ExcludeDispatchKeyGuard keys_;
  at::DisableRecordFunctionGuard unrecorded_;
};

// A number that is the same for the same state of the generator and of `salt`.
uint64_t seed_of(const at::Generator& generator, uint64_t salt = 0);

// For an operator that is being captured into a graph, asked before its genuine kernel: what `seed_of` would return at the same
// place of a program without graphs, at each replay. `order` makes seeds different where the graph does not know the generator.
std::function<uint64_t()> seed_at_replay(const at::Generator& generator, uint64_t order);

// Runs the operator with `arguments`, and copies its results over those of the genuine kernel, or puts them there if there
// are none (`replace`). All tensors are the host's. Returns why the host cannot compute it, or nothing. Throws what the
// operator throws for wrong values, such as an index out of range.
std::optional<std::string> run_on_host(const c10::OperatorHandle& handle, const OperatorTraits& traits, const Stack& arguments,
                                       Stack& results, bool replace, std::optional<uint64_t> seed);

}  // namespace simulator
