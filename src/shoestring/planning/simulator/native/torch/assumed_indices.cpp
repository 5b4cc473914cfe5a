#include "torch/assumed_indices.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "configuration.h"
#include "torch/tensors.h"
#include "torch/value_limits.h"

namespace simulator {
namespace {

using c10::IValue;

constexpr int last_dimension = -1;  // not an argument of the operator: it is always the last one

// Where an operator has the dimension in which it chooses, and its indices.
struct Choice {
  int dimension_argument;
  size_t result;
  bool of_extremes;  // and not by order or by chance
};

const Choice* find_choice(const std::string& name) {
  static const std::unordered_map<std::string, Choice> choices{
      {"argmax", {1, 0, true}},      {"argmin", {1, 0, true}},
      {"max.dim", {1, 1, true}},     {"max.dim_max", {1, 1, true}},
      {"min.dim", {1, 1, true}},     {"min.dim_min", {1, 1, true}},
      {"topk", {2, 1, true}},        {"topk.values", {2, 1, true}},
      {"kthvalue", {2, 1, false}},   {"median.dim", {1, 1, false}},
      {"mode", {1, 1, false}},       {"multinomial", {last_dimension, 0, false}},
      {"sort", {1, 1, false}},       {"sort.values", {1, 1, false}},
      {"sort.stable", {2, 1, false}}, {"sort.values_stable", {2, 1, false}},
      {"argmax.out", {1, 0, true}},  {"argmin.out", {1, 0, true}},
      {"multinomial.out", {last_dimension, 0, false}},
  };
  const auto found = choices.find(name.substr(name.find(':') + 2));
  return found == choices.end() ? nullptr : &found->second;
}

void fill(const at::Tensor& indices, const at::Tensor& from, std::optional<int64_t> dimension) {
  const int64_t range = dimension && from.dim() > 0 ? from.size(*dimension) : from.numel();
  if (range == 0) return;
  // A dimension that the result has as well holds several choices of a row, or one.
  const bool has_dimension = dimension && from.dim() > 0 && indices.dim() == from.dim();
  const at::Tensor rows_last = has_dimension ? indices.movedim(*dimension, -1) : indices.unsqueeze(-1);
  const int64_t chosen = rows_last.size(-1);
  const at::Tensor places = at::arange(indices.numel(), at::kLong).reshape(rows_last.sizes());
  rows_last.copy_((places + std::max<int64_t>(range - chosen, 0) / 2).remainder(range));
}

void assume(const Choice& choice, const std::vector<IValue>& arguments, const std::vector<IValue>& results) {
  if (arguments.empty() || !arguments[0].isTensor() || choice.result >= results.size() || !results[choice.result].isTensor()) return;
  const at::Tensor& indices = results[choice.result].toTensor();
  if (!is_device_tensor(indices) || indices.numel() == 0) return;
  if (indices.nbytes() > std::max(configuration().value_bytes, largest_computed_bytes(indices))) return;
  std::optional<int64_t> dimension;
  if (choice.dimension_argument == last_dimension) {
    dimension = -1;
  } else if (const IValue& argument = arguments[static_cast<size_t>(choice.dimension_argument)]; argument.isInt()) {
    dimension = argument.toInt();
  }
  fill(on_host(indices), arguments[0].toTensor(), dimension);
}

}  // namespace

void assume_indices(const std::string& name, const std::vector<IValue>& arguments, const std::vector<IValue>& results) {
  if (const Choice* choice = find_choice(name)) assume(*choice, arguments, results);
}

void spread_choices(const std::string& name, const std::vector<IValue>& arguments, const std::vector<IValue>& results) {
  const Choice* choice = find_choice(name);
  if (choice != nullptr && choice->of_extremes) assume(*choice, arguments, results);
}

}  // namespace simulator
