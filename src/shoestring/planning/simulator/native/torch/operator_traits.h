// How an operator with a CUDA kernel is treated.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <vector>

#include "torch/references.h"

namespace simulator {

struct OperatorTraits {
  explicit OperatorTraits(const c10::OperatorHandle& handle);

  std::string name;
  Reference reference = nullptr;     // how the host computes it, if not by the operator itself
  bool only_views = false;           // its results are views: nothing is computed
  bool shape_from_values = false;    // its genuine kernel cannot know the shapes, as they depend on values
  bool without_genuine = false;      // for that reason, or because the genuine kernel works on the host with values
  bool keeps_workspaces = false;     // linear algebra and FFT: the genuine kernel may fail without a device
  bool random = false;
  bool overwrites = false;           // in place, but does not depend on what was there
  bool reads = false;                // its result is a number of the host
  bool checks_infinities = false;    // GradScaler's
  std::vector<bool> writes;          // for each argument
  std::vector<bool> is_output;       // for each argument: given for the result alone
  std::vector<bool> result_is_argument;  // for each result
};

// Operators that make no values: memory, metadata, choices of the host. They are left as they are.
bool is_left_alone(const std::string& name);

// Cheap operators that put known values into small tensors: computed even where no values are asked for, so that counters
// and flags that a program reads are right.
bool is_always_computed(const std::string& name);

}  // namespace simulator
