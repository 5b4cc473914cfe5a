// Normalization: cuDNN's BatchNorm, the parts of a BatchNorm over several processes, and RMSNorm's backward.
#include <ATen/ATen.h>

#include "torch/references.h"

namespace simulator {
namespace {

using at::Tensor;

// Channels first, all else in one dimension.
Tensor by_channel(const Tensor& tensor) { return tensor.transpose(0, 1).reshape({tensor.size(1), -1}); }

// A number for each channel, in the shape that broadcasts over a batch.
Tensor per_channel(const Tensor& values, const Tensor& like) {
  std::vector<int64_t> shape(like.dim(), 1);
  shape[1] = values.numel();
  return values.reshape(shape);
}

// input, weight, bias, running mean, running variance, training, momentum, epsilon
void cudnn_batch_norm(Stack& stack, const Stack&) {
  const auto result = at::native_batch_norm(tensor_at(stack, 0), tensor_at(stack, 1), tensor_at(stack, 2), tensor_at(stack, 3), tensor_at(stack, 4),
                                            stack[5].toBool(), stack[6].toDouble(), stack[7].toDouble());
  set_results(stack, {std::get<0>(result), std::get<1>(result), std::get<2>(result)});
}

// input, gradient, weight, running mean and variance, saved mean and inverse deviation, epsilon, reserve
void cudnn_batch_norm_backward(Stack& stack, const Stack&) {
  const auto result =
      at::native_batch_norm_backward(tensor_at(stack, 1), tensor_at(stack, 0), tensor_at(stack, 2), tensor_at(stack, 3), tensor_at(stack, 4),
                                     tensor_at(stack, 5), tensor_at(stack, 6), true, stack[7].toDouble(), {true, true, true});
  set_results(stack, {std::get<0>(result), std::get<1>(result), std::get<2>(result)});
}

// input, epsilon
void batch_norm_stats(Stack& stack, const Stack&) {
  const Tensor values = by_channel(float_at(stack, 0));
  set_results(stack, {values.mean(1), (values.var(1, false) + stack[1].toDouble()).rsqrt()});
}

// input, weight, bias, mean, inverse deviation, epsilon
void batch_norm_elemt(Stack& stack, const Stack&) {
  const Tensor input = float_at(stack, 0);
  Tensor result = (input - per_channel(float_at(stack, 3), input)) * per_channel(float_at(stack, 4), input);
  if (tensor_at(stack, 1).defined()) result = result * per_channel(float_at(stack, 1), input);
  if (tensor_at(stack, 2).defined()) result = result + per_channel(float_at(stack, 2), input);
  set_results(stack, {result});
}

// input, means and inverse deviations of each process, running mean and variance, momentum, epsilon, counts of each process
void batch_norm_gather_stats(Stack& stack, const Stack&) {
  const Tensor means = float_at(stack, 1), inverses = float_at(stack, 2);
  const double momentum = stack[5].toDouble(), epsilon = stack[6].toDouble();
  const Tensor counts = (stack[7].isTensor() ? float_at(stack, 7) : at::full({means.size(0)}, static_cast<double>(stack[7].toInt()))).reshape({-1, 1});
  const Tensor total = counts.sum();
  const Tensor mean = (means * counts).sum(0) / total;
  const Tensor variances = inverses.pow(-2) - epsilon;
  const Tensor variance = ((variances + (means - mean).square()) * counts).sum(0) / total;
  if (const Tensor running = tensor_at(stack, 3); running.defined()) running.mul_(1 - momentum).add_(mean * momentum);
  if (const Tensor running = tensor_at(stack, 4); running.defined()) {
    running.mul_(1 - momentum).add_(variance * total / (total - 1) * momentum);
  }
  set_results(stack, {mean, (variance + epsilon).rsqrt()});
}

// gradient, input, mean, inverse deviation, weight, wanted gradients (3)
void batch_norm_backward_reduce(Stack& stack, const Stack&) {
  const Tensor gradient = float_at(stack, 0), input = float_at(stack, 1), mean = float_at(stack, 2), inverse = float_at(stack, 3);
  const Tensor sum = by_channel(gradient).sum(1);
  const Tensor sum_of_products = by_channel(gradient * (input - per_channel(mean, input))).sum(1);
  set_results(stack, {sum, sum_of_products, sum_of_products * inverse, sum});
}

// gradient, input, mean, inverse deviation, weight, sum, sum of products, counts
void batch_norm_backward_elemt(Stack& stack, const Stack&) {
  const Tensor gradient = float_at(stack, 0), input = float_at(stack, 1), mean = float_at(stack, 2), inverse = float_at(stack, 3);
  const Tensor weight = float_at(stack, 4);
  const Tensor total = float_at(stack, 7).sum();
  const Tensor mean_gradient = per_channel(float_at(stack, 5) / total, input);
  const Tensor projection = per_channel(float_at(stack, 6) / total * inverse.square(), input);
  const Tensor factor = per_channel(weight.defined() ? inverse * weight : inverse, input);
  set_results(stack, {(gradient - mean_gradient - (input - per_channel(mean, input)) * projection) * factor});
}

// gradient, input, normalized shape, inverse root mean square, weight, wanted gradients
void rms_norm_backward(Stack& stack, const Stack&) {
  const Tensor gradient = float_at(stack, 0), input = float_at(stack, 1), inverse = float_at(stack, 3), weight = float_at(stack, 4);
  const int64_t normalized = static_cast<int64_t>(stack[2].toIntVector().size());
  std::vector<int64_t> inner, outer;
  for (int64_t i = 0; i < input.dim(); ++i) (i < input.dim() - normalized ? outer : inner).push_back(i);
  const Tensor normal = input * inverse;
  const Tensor weighted = weight.defined() ? gradient * weight : gradient;
  const Tensor input_gradient = (weighted - normal * (weighted * normal).mean(inner, true)) * inverse;
  Tensor weight_gradient;
  if (weight.defined()) weight_gradient = outer.empty() ? gradient * normal : (gradient * normal).sum(outer);
  set_results(stack, {input_gradient, weight_gradient});
}

}  // namespace

void add_normalization(ReferenceTable& table) {
  table["aten::cudnn_batch_norm"] = cudnn_batch_norm;
  table["aten::cudnn_batch_norm_backward"] = cudnn_batch_norm_backward;
  table["aten::batch_norm_stats"] = batch_norm_stats;
  table["aten::batch_norm_elemt"] = batch_norm_elemt;
  table["aten::batch_norm_gather_stats"] = batch_norm_gather_stats;
  table["aten::batch_norm_gather_stats_with_counts"] = batch_norm_gather_stats;
  table["aten::batch_norm_backward_reduce"] = batch_norm_backward_reduce;
  table["aten::batch_norm_backward_elemt"] = batch_norm_backward_elemt;
  table["aten::_fused_rms_norm_backward"] = rms_norm_backward;
}

}  // namespace simulator
