// Scaled dot product attention, which CUDA has in three implementations (efficient, flash, cuDNN), each with its layout of the
// logarithms of the softmax's denominators. They are computed here by the definition.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <cmath>
#include <limits>

#include "torch/references.h"

namespace simulator {
namespace {

using at::Tensor;

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

struct Attention {
  Tensor query, key, value;  // float32; batch, heads, length, size
  Tensor scores;
  Tensor kept;  // the mask of dropout, scaled; undefined without
  double scale = 1;
  int64_t query_heads_per_key = 1;
  int64_t query_heads_per_value = 1;
};

struct AttentionOptions {
  Tensor bias;
  double dropout = 0;
  bool causal = false;
  bool causal_from_end = false;  // the last query sees the last key, not the first query the first
  c10::IValue scale;
  std::optional<int64_t> left, right;  // the window's width on each side
  uint64_t seed = 0;
};

Tensor repeat_heads(const Tensor& tensor, int64_t times) { return times == 1 ? tensor : tensor.repeat_interleave(times, 1); }

Tensor sum_heads(const Tensor& gradient, int64_t times) {
  return times == 1 ? gradient : gradient.unflatten(1, {gradient.size(1) / times, times}).sum(2);
}

// Which keys a query sees, or an undefined tensor if it sees all.
Tensor visible(const AttentionOptions& options, int64_t queries, int64_t keys) {
  const int64_t shift = options.causal_from_end ? keys - queries : 0;
  std::optional<int64_t> left = options.left, right = options.right;
  if (options.causal) right = 0;
  if (!left && !right) return {};
  const Tensor distance = at::arange(keys, at::kLong).unsqueeze(0) - at::arange(queries, at::kLong).unsqueeze(1) - shift;
  Tensor seen = at::ones({queries, keys}, at::kBool);
  if (right) seen = seen.logical_and(distance.le(*right));
  if (left) seen = seen.logical_and(distance.ge(-*left));
  return seen;
}

Attention make_attention(const Tensor& query, const Tensor& key, const Tensor& value, const AttentionOptions& options) {
  Attention attention;
  attention.query = query.to(at::kFloat);
  attention.query_heads_per_key = query.size(1) / key.size(1);
  attention.query_heads_per_value = query.size(1) / value.size(1);
  attention.key = repeat_heads(key.to(at::kFloat), attention.query_heads_per_key);
  attention.value = repeat_heads(value.to(at::kFloat), attention.query_heads_per_value);
  attention.scale = options.scale.isNone() ? 1 / std::sqrt(static_cast<double>(query.size(-1))) : options.scale.toDouble();
  attention.scores = at::matmul(attention.query, attention.key.transpose(-2, -1)) * attention.scale;
  if (options.bias.defined()) attention.scores = attention.scores + options.bias.to(at::kFloat);
  const Tensor seen = visible(options, query.size(-2), key.size(-2));
  if (seen.defined()) attention.scores = attention.scores.masked_fill(seen.logical_not(), minus_infinity);
  if (options.dropout > 0) {
    const at::Generator generator = at::detail::createCPUGenerator(options.seed);
    attention.kept = at::empty_like(attention.scores).bernoulli_(1 - options.dropout, generator).div_(1 - options.dropout);
  }
  return attention;
}

Tensor probabilities(const Tensor& scores, const Tensor& log_sums) {
  const Tensor log_sum = log_sums.unsqueeze(-1);
  return at::where(log_sum.isinf(), at::zeros({}), (scores - log_sum).exp());
}

struct AttentionResult {
  Tensor output, log_sums;  // of batch, heads, queries
};

AttentionResult forward(const Attention& attention) {
  const Tensor log_sums = attention.scores.logsumexp(-1);
  Tensor weights = probabilities(attention.scores, log_sums);
  if (attention.kept.defined()) weights = weights * attention.kept;
  return {at::matmul(weights, attention.value), log_sums};
}

struct AttentionGradients {
  Tensor query, key, value, scores;
};

// The denominators are computed again: so a backward is right whatever layout the forward gave them.
AttentionGradients backward(const Attention& attention, const Tensor& output_gradient) {
  const Tensor gradient = output_gradient.to(at::kFloat);
  const Tensor weights = probabilities(attention.scores, attention.scores.logsumexp(-1));
  const Tensor kept_weights = attention.kept.defined() ? weights * attention.kept : weights;
  Tensor weights_gradient = at::matmul(gradient, attention.value.transpose(-2, -1));
  if (attention.kept.defined()) weights_gradient = weights_gradient * attention.kept;
  const Tensor scores = weights * (weights_gradient - (weights_gradient * weights).sum(-1, true));
  AttentionGradients gradients;
  gradients.scores = scores;
  gradients.query = at::matmul(scores, attention.key) * attention.scale;
  gradients.key = sum_heads(at::matmul(scores.transpose(-2, -1), attention.query) * attention.scale, attention.query_heads_per_key);
  gradients.value = sum_heads(at::matmul(kept_weights.transpose(-2, -1), gradient), attention.query_heads_per_value);
  return gradients;
}

// Dropout's mask has to be the same in the backward. The forward draws a number, from the host's generator that has been seeded
// for this call, and leaves it in the memory that the genuine kernel keeps for its own seed.
uint64_t new_seed(const AttentionOptions& options, const Tensor& kept_seed) {
  if (options.dropout <= 0) return 0;
  const uint64_t seed = at::randint(std::numeric_limits<int64_t>::max(), {1}, at::kLong).item<int64_t>();
  if (kept_seed.defined() && kept_seed.nbytes() >= sizeof(seed)) *static_cast<uint64_t*>(kept_seed.data_ptr()) = seed;
  return seed;
}

uint64_t kept_seed(const Tensor& tensor) {
  return tensor.defined() && tensor.nbytes() >= sizeof(uint64_t) ? *static_cast<const uint64_t*>(tensor.const_data_ptr()) : 0;
}

// The denominators in the genuine kernel's shape: it may pad the queries, or add a dimension.
Tensor shaped_log_sums(const Tensor& log_sums, const Tensor& genuine) {
  if (!genuine.defined() || genuine.numel() == 0) return {};
  if (genuine.numel() == log_sums.numel()) return log_sums.reshape(genuine.sizes());
  Tensor shaped = at::zeros(genuine.sizes());
  if (genuine.dim() == 3 && genuine.size(-1) >= log_sums.size(-1)) shaped.narrow(-1, 0, log_sums.size(-1)).copy_(log_sums);
  return shaped;
}

std::optional<int64_t> window_at(const Stack& stack, size_t index) {
  if (index >= stack.size() || !stack[index].isInt() || stack[index].toInt() < 0) return std::nullopt;
  return stack[index].toInt();
}

// query, key, value, bias, compute_log_sumexp, dropout, causal, scale
void efficient(Stack& stack, const Stack& genuine) {
  AttentionOptions options;
  options.bias = tensor_at(stack, 3);
  options.dropout = stack[5].toDouble();
  options.causal = stack[6].toBool();
  options.scale = stack[7];
  options.seed = new_seed(options, tensor_at(genuine, 2));
  const AttentionResult result = forward(make_attention(tensor_at(stack, 0), tensor_at(stack, 1), tensor_at(stack, 2), options));
  set_results(stack, {result.output, shaped_log_sums(result.log_sums, tensor_at(genuine, 1))});
}

// grad, query, key, value, bias, output, log_sums, seed, offset, dropout, wanted gradients, causal, scale
void efficient_backward(Stack& stack, const Stack&) {
  AttentionOptions options;
  options.bias = tensor_at(stack, 4);
  options.dropout = stack[9].toDouble();
  options.causal = stack[11].toBool();
  options.scale = stack[12];
  options.seed = kept_seed(tensor_at(stack, 7));
  const bool wants_bias = options.bias.defined() && stack[10].toBoolList()[3];
  const AttentionGradients gradients =
      backward(make_attention(tensor_at(stack, 1), tensor_at(stack, 2), tensor_at(stack, 3), options), tensor_at(stack, 0));
  const Tensor bias = wants_bias ? at::sum_to(gradients.scores, options.bias.sizes()) : Tensor();
  set_results(stack, {gradients.query, gradients.key, gradients.value, bias});
}

// query, key, value, dropout, causal, return_debug_mask, scale; the results are output, log_sums, 4 lengths, seed, offset, mask
void flash(Stack& stack, const Stack& genuine) {
  AttentionOptions options;
  options.dropout = stack[3].toDouble();
  options.causal = stack[4].toBool();
  options.causal_from_end = true;
  options.scale = stack[6];
  options.seed = new_seed(options, tensor_at(genuine, 6));
  const AttentionResult result = forward(make_attention(tensor_at(stack, 0), tensor_at(stack, 1), tensor_at(stack, 2), options));
  set_results(stack, {result.output, shaped_log_sums(result.log_sums, tensor_at(genuine, 1))});
}

// grad, query, key, value, output, log_sums, lengths (4), dropout, causal, seed, offset, scale
void flash_backward(Stack& stack, const Stack&) {
  AttentionOptions options;
  options.dropout = stack[10].toDouble();
  options.causal = stack[11].toBool();
  options.causal_from_end = true;
  options.scale = stack[14];
  options.seed = kept_seed(tensor_at(stack, 12));
  const AttentionGradients gradients =
      backward(make_attention(tensor_at(stack, 1), tensor_at(stack, 2), tensor_at(stack, 3), options), tensor_at(stack, 0));
  set_results(stack, {gradients.query, gradients.key, gradients.value});
}

// query, key, value, bias, compute_log_sumexp, dropout, causal, return_debug_mask, scale
void cudnn(Stack& stack, const Stack& genuine) {
  AttentionOptions options;
  options.bias = tensor_at(stack, 3);
  options.dropout = stack[5].toDouble();
  options.causal = stack[6].toBool();
  options.scale = stack[8];
  options.seed = new_seed(options, tensor_at(genuine, 6));
  const AttentionResult result = forward(make_attention(tensor_at(stack, 0), tensor_at(stack, 1), tensor_at(stack, 2), options));
  set_results(stack, {result.output, shaped_log_sums(result.log_sums, tensor_at(genuine, 1))});
}

// grad, query, key, value, output, log_sums, seed, offset, bias, lengths (4), dropout, causal, scale
void cudnn_backward(Stack& stack, const Stack&) {
  AttentionOptions options;
  options.bias = tensor_at(stack, 8);
  options.dropout = stack[13].toDouble();
  options.causal = stack[14].toBool();
  options.scale = stack[15];
  options.seed = kept_seed(tensor_at(stack, 6));
  const AttentionGradients gradients =
      backward(make_attention(tensor_at(stack, 1), tensor_at(stack, 2), tensor_at(stack, 3), options), tensor_at(stack, 0));
  set_results(stack, {gradients.query, gradients.key, gradients.value});
}

// The two operators below are given queries as batch, length, heads, size, or several sequences of different lengths one after
// the other as length, heads, size, with the positions where each begins.
struct Sequences {
  bool packed = false;
  std::vector<int64_t> query_starts, key_starts;
};

Sequences sequences_at(const Stack& stack, size_t query_starts, size_t key_starts) {
  Sequences sequences;
  const Tensor of_queries = tensor_at(stack, query_starts), of_keys = tensor_at(stack, key_starts);
  if (!of_queries.defined() || !of_keys.defined()) return sequences;
  sequences.packed = true;
  for (int64_t i = 0; i < of_queries.numel(); ++i) {
    sequences.query_starts.push_back(of_queries[i].item<int64_t>());
    sequences.key_starts.push_back(of_keys[i].item<int64_t>());
  }
  return sequences;
}

// A sequence as batch, heads, length, size.
Tensor sequence(const Tensor& packed, const std::vector<int64_t>& starts, size_t i) {
  const Tensor tokens = packed.dim() == 4 ? packed.squeeze(0) : packed;
  return tokens.narrow(0, starts[i], starts[i + 1] - starts[i]).transpose(0, 1).unsqueeze(0);
}

Tensor unpacked(const Tensor& attention_layout) { return attention_layout.squeeze(0).transpose(0, 1); }

AttentionResult forward_of(const Sequences& sequences, const Tensor& query, const Tensor& key, const Tensor& value, const AttentionOptions& options) {
  if (!sequences.packed) {
    AttentionResult result = forward(make_attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), options));
    result.output = result.output.transpose(1, 2);
    return result;
  }
  std::vector<Tensor> outputs, log_sums;
  for (size_t i = 0; i + 1 < sequences.query_starts.size(); ++i) {
    const AttentionResult part = forward(make_attention(sequence(query, sequences.query_starts, i), sequence(key, sequences.key_starts, i),
                                                        sequence(value, sequences.key_starts, i), options));
    outputs.push_back(unpacked(part.output));
    log_sums.push_back(part.log_sums.squeeze(0));
  }
  const Tensor output = at::cat(outputs, 0);
  return {query.dim() == 4 ? output.unsqueeze(0) : output, at::cat(log_sums, -1)};
}

AttentionGradients backward_of(const Sequences& sequences, const Tensor& gradient, const Tensor& query, const Tensor& key, const Tensor& value,
                               const AttentionOptions& options) {
  if (!sequences.packed) {
    AttentionGradients gradients =
        backward(make_attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), options), gradient.transpose(1, 2));
    for (Tensor* part : {&gradients.query, &gradients.key, &gradients.value}) *part = part->transpose(1, 2);
    return gradients;
  }
  std::vector<Tensor> queries, keys, values;
  for (size_t i = 0; i + 1 < sequences.query_starts.size(); ++i) {
    const AttentionGradients part =
        backward(make_attention(sequence(query, sequences.query_starts, i), sequence(key, sequences.key_starts, i),
                                sequence(value, sequences.key_starts, i), options),
                 sequence(gradient, sequences.query_starts, i));
    queries.push_back(unpacked(part.query));
    keys.push_back(unpacked(part.key));
    values.push_back(unpacked(part.value));
  }
  return {at::cat(queries, 0).reshape(query.sizes()), at::cat(keys, 0).reshape(key.sizes()), at::cat(values, 0).reshape(value.sizes()), {}};
}

// query, key, value, query starts, key starts, longest (2), dropout, causal, return_debug_mask, scale, window (2), ...
void flash_sequences(Stack& stack, const Stack& genuine) {
  AttentionOptions options;
  options.dropout = stack[7].toDouble();
  options.causal = stack[8].toBool();
  options.causal_from_end = true;
  options.scale = stack[10];
  options.left = window_at(stack, 11);
  options.right = window_at(stack, 12);
  options.seed = new_seed(options, tensor_at(genuine, 2));
  const AttentionResult result =
      forward_of(sequences_at(stack, 3, 4), tensor_at(stack, 0), tensor_at(stack, 1), tensor_at(stack, 2), options);
  set_results(stack, {result.output, shaped_log_sums(result.log_sums, tensor_at(genuine, 1))});
}

// grad, query, key, value, output, log_sums, starts (2), longest (2), dropout, causal, seed, offset, scale, window (2)
void flash_sequences_backward(Stack& stack, const Stack&) {
  AttentionOptions options;
  options.dropout = stack[10].toDouble();
  options.causal = stack[11].toBool();
  options.causal_from_end = true;
  options.scale = stack[14];
  options.left = window_at(stack, 15);
  options.right = window_at(stack, 16);
  options.seed = kept_seed(tensor_at(stack, 12));
  const AttentionGradients gradients = backward_of(sequences_at(stack, 6, 7), tensor_at(stack, 0), tensor_at(stack, 1), tensor_at(stack, 2),
                                                   tensor_at(stack, 3), options);
  set_results(stack, {gradients.query, gradients.key, gradients.value});
}

// The custom masks of the efficient attention: none, causal from the first query, causal from the last.
void set_mask(AttentionOptions& options, int64_t mask) {
  options.causal = mask != 0;
  options.causal_from_end = mask == 2;
}

// query, key, value, bias, query starts, key starts, longest (2), dropout, mask, compute_log_sumexp, scale, ...
void efficient_sequences(Stack& stack, const Stack& genuine) {
  AttentionOptions options;
  options.bias = tensor_at(stack, 3);
  options.dropout = stack[8].toDouble();
  set_mask(options, stack[9].toInt());
  options.scale = stack[11];
  options.seed = new_seed(options, tensor_at(genuine, 2));
  const AttentionResult result =
      forward_of(sequences_at(stack, 4, 5), tensor_at(stack, 0), tensor_at(stack, 1), tensor_at(stack, 2), options);
  set_results(stack, {result.output, shaped_log_sums(result.log_sums, tensor_at(genuine, 1))});
}

// grad, query, key, value, bias, output, starts (2), longest (2), log_sums, dropout, seed, offset, mask, bias_requires_grad, scale, ...
void efficient_sequences_backward(Stack& stack, const Stack&) {
  AttentionOptions options;
  options.bias = tensor_at(stack, 4);
  options.dropout = stack[11].toDouble();
  set_mask(options, stack[14].toInt());
  options.scale = stack[16];
  options.seed = kept_seed(tensor_at(stack, 12));
  const bool wants_bias = options.bias.defined() && stack[15].toBool();
  const AttentionGradients gradients = backward_of(sequences_at(stack, 6, 7), tensor_at(stack, 0), tensor_at(stack, 1), tensor_at(stack, 2),
                                                   tensor_at(stack, 3), options);
  const Tensor bias = wants_bias && gradients.scores.defined() ? at::sum_to(gradients.scores, options.bias.sizes()) : Tensor();
  set_results(stack, {gradients.query, gradients.key, gradients.value, bias});
}

}  // namespace

void add_attention(ReferenceTable& table) {
  table["aten::_scaled_dot_product_efficient_attention"] = efficient;
  table["aten::_scaled_dot_product_efficient_attention_backward"] = efficient_backward;
  table["aten::_scaled_dot_product_flash_attention"] = flash;
  table["aten::_scaled_dot_product_flash_attention_backward"] = flash_backward;
  table["aten::_scaled_dot_product_cudnn_attention"] = cudnn;
  table["aten::_scaled_dot_product_cudnn_attention_backward"] = cudnn_backward;
  table["aten::_flash_attention_forward"] = flash_sequences;
  table["aten::_flash_attention_backward"] = flash_sequences_backward;
  table["aten::_efficient_attention_forward"] = efficient_sequences;
  table["aten::_efficient_attention_backward"] = efficient_sequences_backward;
}

}  // namespace simulator
