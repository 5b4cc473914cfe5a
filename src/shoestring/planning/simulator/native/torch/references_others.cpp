// Dropout that keeps its mask, cuDNN's loss of connectionist temporal classification, least squares, bags of embeddings, and the
// gradient of the logarithm of the sigmoid.
#include <ATen/ATen.h>

#include "torch/references.h"

namespace simulator {
namespace {

using at::Tensor;

// input, probability to keep, generator
void fused_dropout(Stack& stack, const Stack&) {
  const Tensor input = tensor_at(stack, 0);
  const double kept = stack[1].toDouble();
  const Tensor mask = at::empty_like(input, input.options().dtype(at::kFloat)).bernoulli_(kept);
  set_results(stack, {input * mask / kept, mask});
}

// input, mask, scale
void masked_scale(Stack& stack, const Stack&) { set_results(stack, {float_at(stack, 0) * float_at(stack, 1) * stack[2].toDouble()}); }

std::vector<int64_t> lengths_at(const Stack& stack, size_t index) {
  if (!stack[index].isTensor()) return stack[index].toIntVector();
  const Tensor lengths = stack[index].toTensor().to(at::kLong).contiguous();
  return {lengths.const_data_ptr<int64_t>(), lengths.const_data_ptr<int64_t>() + lengths.numel()};
}

// log probabilities, targets, lengths of both, blank, deterministic, zero_infinity; cuDNN makes the gradient with the loss
void cudnn_ctc_loss(Stack& stack, const Stack&) {
  const Tensor log_probabilities = float_at(stack, 0);
  const Tensor targets = tensor_at(stack, 1).to(at::kLong);
  const std::vector<int64_t> input_lengths = lengths_at(stack, 2), target_lengths = lengths_at(stack, 3);
  const int64_t blank = stack[4].toInt();
  const bool zero_infinity = stack[6].toBool();
  const auto [loss, alpha] = at::_ctc_loss(log_probabilities, targets, input_lengths, target_lengths, blank, zero_infinity);
  const Tensor gradient = at::_ctc_loss_backward(at::ones_like(loss), log_probabilities, targets, input_lengths, target_lengths, loss, alpha,
                                                 blank, zero_infinity);
  set_results(stack, {loss, gradient});
}

// self, other, rcond, driver, outputs (4): by the pseudoinverse, which is the same for matrices of full rank, as CUDA's only driver needs.
void least_squares(Stack& stack, const Stack&) {
  const Tensor matrix = tensor_at(stack, 0), given = tensor_at(stack, 1);
  const bool is_vector = given.dim() == 1 || (given.dim() == matrix.dim() - 1 && given.sizes() == matrix.sizes().slice(0, given.dim()));
  const Tensor right = is_vector ? given.unsqueeze(-1) : given;
  const Tensor solution = at::matmul(at::linalg_pinv(matrix), right);
  const Tensor written = tensor_at(stack, 4), residuals = tensor_at(stack, 5);
  written.copy_(is_vector ? solution.squeeze(-1) : solution);
  if (residuals.numel() > 0) residuals.copy_((at::matmul(matrix, solution) - right).abs().square().sum(-2).reshape(residuals.sizes()));
  set_results(stack, {written, residuals, tensor_at(stack, 6), tensor_at(stack, 7)});
}

constexpr int64_t bag_mean = 1, bag_max = 2;  // 0 is the sum

// weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset, padding_idx. The results
// beside the bags are those of CUDA, which its backward reads: the bag of each index, the bags' sizes, the indices of maxima.
void embedding_bag(Stack& stack, const Stack&) {
  const Tensor weight = float_at(stack, 0);
  const Tensor indices = tensor_at(stack, 1).to(at::kLong);
  const Tensor offsets = tensor_at(stack, 2).to(at::kLong);
  const int64_t mode = stack[4].toInt();
  const Tensor sample_weights = float_at(stack, 6);
  const int64_t padding = stack[8].toInt();
  const int64_t bags = offsets.numel() - (stack[7].toBool() ? 1 : 0);
  const Tensor starts = offsets.narrow(0, 0, bags);
  const Tensor bag_of_index = at::searchsorted(starts.contiguous(), at::arange(indices.numel(), at::kLong), false, true) - 1;
  const Tensor used = indices.ne(padding);
  const Tensor sizes = at::zeros({bags}, at::kLong).index_add(0, bag_of_index, used.to(at::kLong));
  const Tensor rows = weight.index_select(0, indices);
  const int64_t features = weight.size(1);
  Tensor result, maxima = at::zeros({0}, at::kLong);
  if (mode == bag_max) {
    result = at::zeros({bags, features});
    maxima = at::full({bags, features}, -1, at::kLong);
    for (int64_t bag = 0; bag < bags; ++bag) {
      const Tensor members = bag_of_index.eq(bag).logical_and(used).nonzero().squeeze(1);
      if (members.numel() == 0) continue;
      const auto [largest, which] = rows.index_select(0, members).max(0);
      result[bag].copy_(largest);
      maxima[bag].copy_(indices.index_select(0, members.index_select(0, which)));
    }
  } else {
    Tensor factor = used.to(at::kFloat);
    if (sample_weights.defined()) factor = factor * sample_weights;
    result = at::zeros({bags, features}).index_add(0, bag_of_index, rows * factor.unsqueeze(1));
    if (mode == bag_mean) result = result / sizes.clamp_min(1).unsqueeze(1);
  }
  set_results(stack, {result, bag_of_index, sizes, maxima});
}

// gradient, indices, bag of each index, sizes, maxima, number of weights, scale_grad_by_freq, mode, per_sample_weights, padding_idx
void embedding_bag_backward(Stack& stack, const Stack&) {
  const Tensor gradient = float_at(stack, 0);
  const Tensor indices = tensor_at(stack, 1).to(at::kLong);
  const Tensor bag_of_index = tensor_at(stack, 2).to(at::kLong);
  const Tensor sizes = tensor_at(stack, 3).to(at::kLong);
  const int64_t count = stack[5].toInt(), mode = stack[7].toInt(), padding = stack[9].toInt();
  const Tensor sample_weights = float_at(stack, 8);
  Tensor result = at::zeros({count, gradient.size(1)});
  if (mode == bag_max) {
    const Tensor maxima = tensor_at(stack, 4).to(at::kLong);
    result.scatter_add_(0, maxima.clamp_min(0), gradient.masked_fill(maxima.lt(0), 0));
  } else {
    Tensor rows = gradient.index_select(0, bag_of_index);
    if (mode == bag_mean) rows = rows / sizes.clamp_min(1).index_select(0, bag_of_index).unsqueeze(1);
    if (sample_weights.defined()) rows = rows * sample_weights.unsqueeze(1);
    if (stack[6].toBool()) {
      const Tensor uses = at::zeros({count}).index_add(0, indices, at::ones({indices.numel()}));
      rows = rows / uses.index_select(0, indices).unsqueeze(1);
    }
    result.index_add_(0, indices, rows.masked_fill(indices.eq(padding).unsqueeze(1), 0));
  }
  set_results(stack, {result});
}

// gradient, input, buffer, and for the variant with an output the result: the host's operator reads the buffer, which is empty on
// a GPU, and leaves zeros without an error.
void log_sigmoid_backward(Stack& stack, const Stack&) {
  Tensor result = float_at(stack, 0) * at::sigmoid(-float_at(stack, 1));
  if (stack.size() > 3) result = tensor_at(stack, 3).copy_(result);
  set_results(stack, {result});
}

}  // namespace

void add_others(ReferenceTable& table) {
  table["aten::_fused_dropout"] = fused_dropout;
  table["aten::_masked_scale"] = masked_scale;
  table["aten::_cudnn_ctc_loss"] = cudnn_ctc_loss;
  table["aten::_cudnn_ctc_loss.Tensor"] = cudnn_ctc_loss;
  table["aten::linalg_lstsq.out"] = least_squares;
  table["aten::_embedding_bag"] = embedding_bag;
  table["aten::_embedding_bag_forward_only"] = embedding_bag;
  table["aten::_embedding_bag_dense_backward"] = embedding_bag_backward;
  table["aten::log_sigmoid_backward"] = log_sigmoid_backward;
  table["aten::log_sigmoid_backward.grad_input"] = log_sigmoid_backward;
}

}  // namespace simulator
