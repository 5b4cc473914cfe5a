// Products of matrices with results of another precision, grouped ones, and softmax that widens.
#include <ATen/ATen.h>

#include "torch/references.h"

namespace simulator {
namespace {

using at::Tensor;

void matmul(Stack& stack, const Stack&) { set_results(stack, {at::matmul(float_at(stack, 0), float_at(stack, 1))}); }

// added, first, second, dtype, beta, alpha
void add_matmul(Stack& stack, const Stack&) {
  set_results(stack, {float_at(stack, 0) * stack[4].toScalar() + at::matmul(float_at(stack, 1), float_at(stack, 2)) * stack[5].toScalar()});
}

// Writes what `function` computes to the last argument.
template <Reference function>
void into_output(Stack& stack, const Stack& genuine) {
  const Tensor output = stack.back().toTensor();
  stack.pop_back();
  function(stack, genuine);
  output.copy_(stack[0].toTensor());
  set_results(stack, {output});
}

// One product for each group: `ends` are the rows (or columns, or inner elements) at which the groups end.
Tensor grouped_product(const Tensor& first, const Tensor& second, const Tensor& ends) {
  if (first.dim() == 3 && second.dim() == 3) return at::bmm(first, second);
  std::vector<Tensor> parts;
  int64_t begin = 0;
  for (int64_t group = 0; group < ends.numel(); ++group) {
    const int64_t length = ends[group].item<int64_t>() - begin;
    if (first.dim() == 2 && second.dim() == 3) {
      parts.push_back(at::mm(first.narrow(0, begin, length), second[group]));
    } else if (first.dim() == 3) {
      parts.push_back(at::mm(first[group], second.narrow(1, begin, length)));
    } else {
      parts.push_back(at::mm(first.narrow(1, begin, length), second.narrow(0, begin, length)));
    }
    begin += length;
  }
  if (first.dim() == 2 && second.dim() == 3) return at::cat(parts, 0);
  return first.dim() == 3 ? at::cat(parts, 1) : at::stack(parts);
}

// first, second, ends, bias, dtype
void grouped_matmul(Stack& stack, const Stack& genuine) {
  Tensor product = grouped_product(float_at(stack, 0), float_at(stack, 1), tensor_at(stack, 2));
  if (tensor_at(stack, 3).defined()) product = product + float_at(stack, 3);
  // Rows after the last group have no value; the genuine result has them.
  const Tensor whole = tensor_at(genuine, 0);
  if (whole.defined() && whole.dim() == product.dim() && whole.sizes() != product.sizes()) {
    Tensor padded = at::zeros(whole.sizes());
    Tensor filled = padded;
    for (int64_t i = 0; i < product.dim(); ++i) filled = filled.narrow(i, 0, std::min(product.size(i), whole.size(i)));
    filled.copy_(product);
    product = padded;
  }
  set_results(stack, {product});
}

// input, dimension, half_to_float: only CUDA widens
template <Tensor (*function)(const Tensor&, int64_t, bool)>
void widening(Stack& stack, const Stack&) {
  const Tensor input = stack[2].toBool() ? float_at(stack, 0) : tensor_at(stack, 0);
  set_results(stack, {function(input, stack[1].toInt(), false)});
}

// gradient, output, dimension, dtype
template <Tensor (*function)(const Tensor&, const Tensor&, int64_t, at::ScalarType)>
void narrowing_backward(Stack& stack, const Stack&) {
  const Tensor gradient = tensor_at(stack, 0);
  const at::ScalarType type = gradient.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  set_results(stack, {function(gradient.to(type), tensor_at(stack, 1).to(type), stack[2].toInt(), type)});
}

Tensor softmax(const Tensor& input, int64_t dimension, bool widens) { return at::_softmax(input, dimension, widens); }
Tensor log_softmax(const Tensor& input, int64_t dimension, bool widens) { return at::_log_softmax(input, dimension, widens); }
Tensor softmax_backward(const Tensor& gradient, const Tensor& output, int64_t dimension, at::ScalarType type) {
  return at::_softmax_backward_data(gradient, output, dimension, type);
}
Tensor log_softmax_backward(const Tensor& gradient, const Tensor& output, int64_t dimension, at::ScalarType type) {
  return at::_log_softmax_backward_data(gradient, output, dimension, type);
}

}  // namespace

void add_products(ReferenceTable& table) {
  for (const char* name : {"aten::mm", "aten::bmm"}) {
    table[std::string(name) + ".dtype"] = matmul;
    table[std::string(name) + ".dtype_out"] = into_output<matmul>;
  }
  for (const char* name : {"aten::addmm", "aten::baddbmm"}) {
    table[std::string(name) + ".dtype"] = add_matmul;
    table[std::string(name) + ".dtype_out"] = into_output<add_matmul>;
  }
  table["aten::_grouped_mm"] = grouped_matmul;
  table["aten::_softmax"] = widening<softmax>;
  table["aten::_softmax.out"] = into_output<widening<softmax>>;
  table["aten::_log_softmax"] = widening<log_softmax>;
  table["aten::_log_softmax.out"] = into_output<widening<log_softmax>>;
  table["aten::_softmax_backward_data"] = narrowing_backward<softmax_backward>;
  table["aten::_softmax_backward_data.out"] = into_output<narrowing_backward<softmax_backward>>;
  table["aten::_log_softmax_backward_data"] = narrowing_backward<log_softmax_backward>;
  table["aten::_log_softmax_backward_data.out"] = into_output<narrowing_backward<log_softmax_backward>>;
}

}  // namespace simulator
