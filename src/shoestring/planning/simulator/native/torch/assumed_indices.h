// Indices that were not computed: choices among the elements of a tensor, such as sampled tokens, classes, or experts.
#pragma once

#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

namespace simulator {

// If the operator chooses elements of its first argument, gives its indices plausible values: valid, different from each other
// where the genuine ones are, from the middle of the range on, and each row others than the row before. The first and last
// tokens of a vocabulary often end a text, and the middle ones are ordinary; rows that differ are spread over all experts.
void assume_indices(const std::string& name, const std::vector<c10::IValue>& arguments, const std::vector<c10::IValue>& results);

// The same for operators that were computed from assumed values and choose the largest or smallest: among equal values that is
// always the first.
void spread_choices(const std::string& name, const std::vector<c10::IValue>& arguments, const std::vector<c10::IValue>& results);

}  // namespace simulator
