// Convolutions that only cuDNN or CUDA has, by the general one.
#include <ATen/ATen.h>

#include "torch/references.h"

namespace simulator {
namespace {

using at::Tensor;

std::vector<int64_t> integers_at(const Stack& stack, size_t index) { return stack[index].toIntVector(); }

Tensor convolve(const Stack& stack, const std::optional<Tensor>& bias, size_t stride, size_t padding, size_t dilation, int64_t groups) {
  const Tensor input = float_at(stack, 0);
  const std::vector<int64_t> no_output_padding(input.dim() - 2, 0);
  return at::convolution(input, float_at(stack, 1), bias, integers_at(stack, stride), integers_at(stack, padding),
                         integers_at(stack, dilation), false, no_output_padding, groups);
}

// Convolutions give their input's memory format, so results are written to an output by copying.
void write_output(Stack& stack, size_t output, const Tensor& result) {
  const Tensor written = tensor_at(stack, output);
  written.copy_(result);
  set_results(stack, {written});
}

// input, weight, padding, stride, dilation, groups, benchmark, deterministic, allow_tf32
void cudnn_convolution(Stack& stack, const Stack&) { set_results(stack, {convolve(stack, std::nullopt, 3, 2, 4, stack[5].toInt())}); }

void cudnn_convolution_out(Stack& stack, const Stack&) { write_output(stack, 9, convolve(stack, std::nullopt, 3, 2, 4, stack[5].toInt())); }

// input, weight, padding, output padding, stride, dilation, groups, ...
void cudnn_convolution_transpose(Stack& stack, const Stack&) {
  set_results(stack, {at::convolution(float_at(stack, 0), float_at(stack, 1), std::nullopt, integers_at(stack, 4), integers_at(stack, 2),
                                      integers_at(stack, 5), true, integers_at(stack, 3), stack[6].toInt())});
}

// input, weight, bias, stride, padding, dilation, groups
void cudnn_convolution_relu(Stack& stack, const Stack&) {
  set_results(stack, {convolve(stack, optional_float_at(stack, 2), 3, 4, 5, stack[6].toInt()).relu()});
}

// input, weight, added, its factor, bias, stride, padding, dilation, groups
void cudnn_convolution_add_relu(Stack& stack, const Stack&) {
  const at::Scalar factor = stack[3].isNone() ? at::Scalar(1) : stack[3].toScalar();
  set_results(stack, {(convolve(stack, optional_float_at(stack, 4), 5, 6, 7, stack[8].toInt()) + float_at(stack, 2) * factor).relu()});
}

// input, weight, kernel size, bias, stride, padding, dilation
Tensor depthwise_result(const Stack& stack) { return convolve(stack, optional_float_at(stack, 3), 4, 5, 6, tensor_at(stack, 0).size(1)); }

void depthwise(Stack& stack, const Stack&) { set_results(stack, {depthwise_result(stack)}); }

void depthwise_out(Stack& stack, const Stack&) { write_output(stack, 7, depthwise_result(stack)); }

// self, grid
void grid_sampler(Stack& stack, const Stack&) {
  set_results(stack, {at::grid_sampler_2d(float_at(stack, 0), float_at(stack, 1), 0, 0, true)});
}

// self, grid, gradient
void grid_sampler_backward(Stack& stack, const Stack&) {
  const auto gradients =
      at::grid_sampler_2d_backward(float_at(stack, 2), float_at(stack, 0), float_at(stack, 1), 0, 0, true, {true, true});
  set_results(stack, {std::get<0>(gradients), std::get<1>(gradients)});
}

}  // namespace

void add_convolution(ReferenceTable& table) {
  table["aten::cudnn_convolution"] = cudnn_convolution;
  table["aten::cudnn_convolution.out"] = cudnn_convolution_out;
  table["aten::cudnn_convolution_transpose"] = cudnn_convolution_transpose;
  table["aten::cudnn_convolution_relu"] = cudnn_convolution_relu;
  table["aten::cudnn_convolution_add_relu"] = cudnn_convolution_add_relu;
  table["aten::_conv_depthwise2d"] = depthwise;
  table["aten::_conv_depthwise2d.out"] = depthwise_out;
  table["aten::conv_depthwise3d"] = depthwise;
  table["aten::cudnn_grid_sampler"] = grid_sampler;
  table["aten::cudnn_grid_sampler_backward"] = grid_sampler_backward;
}

}  // namespace simulator
